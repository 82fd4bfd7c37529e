/* Landmarks that share a name get one of their own, those that are none lose the role, and a table
   that scrolls can be reached with the keyboard. The theme adds buttons and tables as a page loads. */
(() => {
  const GIVEN = [
    [".md-path", { "aria-label": "Path" }],
    ["nav.md-code__nav", { role: "presentation" }],
    [".md-typeset__scrollwrap", { role: "group", "aria-label": "Table", tabindex: "0" }],
  ];

  const mend = () => {
    for (const [selector, attributes] of GIVEN) {
      for (const node of document.querySelectorAll(selector)) {
        for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
      }
    }
  };

  const start = () => {
    mend();
    new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
