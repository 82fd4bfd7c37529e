/* Links within the page: sections are drawn as they come into view, so whatever stands above a
   target is drawn before the jump, and the target is held in place until nothing grows any more. */

const SETTLING = 1500;
const HANDS = ["wheel", "touchstart", "pointerdown", "keydown"];
let release = () => {};

const precedes = (node, target) => node === target || Boolean(node.compareDocumentPosition(target) & Node.DOCUMENT_POSITION_FOLLOWING);

function targetOf(hash) {
  try { return document.getElementById(decodeURIComponent(hash.slice(1))); } catch { return null; }
}

/* Everything above the target gets its final height; a folded target opens, a hidden one is shown. */
function prepare(target) {
  if (target.tagName === "DETAILS") target.open = true;
  if (target.hidden) target.dispatchEvent(new Event("reveal", { bubbles: true }));
  if (!window.Plotly) return;
  for (const section of sections) if (section.stale && precedes(section.node, target)) draw(section);
}

/* Scroll again whenever the page changes its height, until a hand moves it or it has settled. */
function hold(target) {
  release();
  let end = 0;
  /* A busy page draws late: what grows in the frame after the wait begins it anew. */
  const last = () => { end = setTimeout(() => release()); };
  const wait = () => {
    clearTimeout(end);
    end = setTimeout(() => requestAnimationFrame(last), SETTLING);
  };
  const settle = () => {
    target.scrollIntoView({ block: "start", behavior: "instant" });
    wait();
  };
  const watch = new ResizeObserver(settle);
  release = () => {
    watch.disconnect();
    clearTimeout(end);
    for (const hand of HANDS) removeEventListener(hand, release);
    release = () => {};
  };
  for (const hand of HANDS) addEventListener(hand, release, { passive: true });
  watch.observe(document.getElementById("main"));
  settle();
}

function jump(hash) {
  const target = targetOf(hash);
  if (!target) return;
  prepare(target);
  hold(target);
  target.querySelector(":scope > summary")?.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  // The address and the focus follow by the browser's own jump, which comes after this one.
  const target = targetOf(link.hash);
  if (target) prepare(target);
  setTimeout(() => jump(link.hash));
});
/* At "load" the browser has made its own jump, which would take the focus away; then sections can
   be drawn as soon as there is something to draw with. */
addEventListener("load", () => drawable.then(() => jump(location.hash)));
addEventListener("hashchange", () => jump(location.hash));
