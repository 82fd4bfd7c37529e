/* Draws pictures as they were given; colours of axes follow the page. */

const PICTURE_CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtons: [["toImage", "zoom2d", "resetScale2d"]],
  toImageButtonOptions: { format: "svg" },
};

function drawPictures() {
  const muted = getComputedStyle(document.documentElement).getPropertyValue("--muted").trim();
  for (const [index, picture] of data.pictures.entries()) {
    const layout = { ...picture.layout, font: { ...picture.layout.font, color: muted } };
    const node = document.getElementById(`picture-${index}`);
    figureInto(node, { traces: picture.data, layout }, node.getAttribute("aria-label"), PICTURE_CONFIG);
  }
}

drawable.then((able) => {
  if (!able) return;
  drawPictures();
  document.addEventListener("theme", drawPictures);
});
