/* Buttons that copy what stands before them, without the prompt of a shell. */

const SHOWN_COPIED = 2000;
const bare = (text) => text.replace(/^\$ /gm, "").trim();

/* Where the browser has no clipboard for a page from disk, the selection is copied. */
async function copyText(text, node) {
  try { return await navigator.clipboard.writeText(text); } catch { /* then as it was done before */ }
  const selection = getSelection();
  selection.selectAllChildren(node);
  document.execCommand("copy");
  selection.removeAllRanges();
}

for (const button of document.querySelectorAll(".copy")) {
  const code = button.previousElementSibling;
  const label = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await copyText(bare(code.textContent), code);
    button.textContent = say("Copied");
    document.getElementById("status").textContent = say("Copied");
    setTimeout(() => { button.textContent = label; }, SHOWN_COPIED);
  });
}
