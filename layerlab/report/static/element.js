/* How scripts write into the page: as nodes and text, never as markup. */

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/* A drawing is read aloud as its label; what stands in it besides are the buttons of the library. */
function figureInto(node, figure, label, config = CONFIG) {
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", label);
  // What is drawn again would keep its width, which is another one on paper; with one of its own it
  // would keep that in a window of another size.
  const layout = { ...figure.layout, width: node.clientWidth || undefined };
  const drawn = Plotly.react(node, figure.traces, layout, config);
  delete layout.width;
  for (const drawing of node.querySelectorAll(".main-svg")) drawing.setAttribute("aria-hidden", "true");
  return drawn;
}

function clear(node) {
  if (node.data) Plotly.purge(node);
  node.replaceChildren();
  node.removeAttribute("role");
  node.removeAttribute("aria-label");
}
