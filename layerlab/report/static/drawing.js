/* The library that draws is packed, so that a page can be mailed. It runs as what it unpacks to,
   and only if that is what the policy of the page names. */

const PACKED = document.getElementById("drawing");

const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const unpacked = (text, format) => new Response(new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream(format)));

async function unpackDrawing() {
  const script = element("script");
  script.textContent = await unpacked(PACKED.textContent, "gzip").text();
  document.head.append(script);
  PACKED.remove();
  if (!window.Plotly) throw new Error("the policy of the page refuses the library that draws");
}

/* Nothing is left blank without a word. */
function sayUndrawn() {
  document.documentElement.dataset.undrawn = "";
  document.getElementById("main").prepend(element("p", { class: "warned", role: "alert" },
    say("The plots cannot be drawn here: they need a browser of 2023 or later. All numbers are in the tables.")));
  return false;
}

/* Whether there is something to draw with, once that is known. */
const drawable = unpackDrawing().then(() => true, sayUndrawn);
