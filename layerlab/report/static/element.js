/* How scripts write into the page: as nodes and text, never as markup. */

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function figureInto(node, figure, label) {
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", label);
  return Plotly.react(node, figure.traces, figure.layout, CONFIG);
}

function clear(node) {
  if (node.data) Plotly.purge(node);
  node.replaceChildren();
  node.removeAttribute("role");
  node.removeAttribute("aria-label");
}
