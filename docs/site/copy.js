/* The button of a block that shows a session copies what was typed: no prompt, and no answer. */
(() => {
  const PROMPT = "$ ";
  const CONTINUED = /\\\s*$/;

  /** The lines after a prompt, with those that a backslash goes on in; null where there is no prompt. */
  const typed = (text) => {
    const lines = text.split("\n");
    const kept = lines.filter((line, place) => {
      for (let first = place; first >= 0; first -= 1) {
        if (lines[first].startsWith(PROMPT)) return true;
        if (first === 0 || !CONTINUED.test(lines[first - 1])) return false;
      }
      return false;
    });
    return kept.length ? kept.map((line) => (line.startsWith(PROMPT) ? line.slice(PROMPT.length) : line)).join("\n") : null;
  };

  const mark = (code) => {
    const found = typed(code.textContent);
    if (found !== null) code.dataset.copy = found;
  };

  const start = () => document.querySelectorAll("article pre > code").forEach(mark);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
