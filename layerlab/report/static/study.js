/* Draws pictures as they were given; colours of axes follow the page. */

const PICTURE_CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtons: [["toImage", "zoom2d", "resetScale2d"]],
  toImageButtonOptions: { format: "svg" },
};

const LETTER = 8.5; // pixels of the title of an axis, on average

/* Titles of axes in as many lines as it takes to stay within the picture. */
function wrapTitles(layout, width) {
  const high = layout.height - layout.margin.t - layout.margin.b;
  const wide = width - layout.margin.l - layout.margin.r;
  const wrap = ([name, axis]) => {
    const [from, to] = axis.domain ?? [0, 1];
    const most = ((to - from) * (name.startsWith("x") ? wide : high)) / LETTER;
    const lines = [];
    for (const word of axis.title.text.split(" ")) {
      if (lines.length && lines.at(-1).length + word.length < most) lines.push(`${lines.pop()} ${word}`);
      else lines.push(word);
    }
    return [name, { ...axis, automargin: true, title: { ...axis.title, text: lines.join("<br>") } }];
  };
  const titled = Object.entries(layout).filter(([name, axis]) => /^[xy]axis/.test(name) && axis.title?.text);
  return { ...layout, ...Object.fromEntries(titled.map(wrap)) };
}

function drawPictures() {
  const muted = getComputedStyle(document.documentElement).getPropertyValue("--muted").trim();
  for (const [index, picture] of data.pictures.entries()) {
    const node = document.getElementById(`picture-${index}`);
    const layout = { ...wrapTitles(picture.layout, node.clientWidth), font: { ...picture.layout.font, color: muted } };
    figureInto(node, { traces: picture.data, layout }, node.getAttribute("aria-label"), PICTURE_CONFIG);
  }
}

drawable.then((able) => {
  if (!able) return;
  drawPictures();
  document.addEventListener("theme", drawPictures);
});
