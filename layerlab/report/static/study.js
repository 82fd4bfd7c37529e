"use strict";
/* Draws the pictures of a study; colours of axes follow the page. */
(() => {
  const pictures = JSON.parse(document.getElementById("data").textContent);
  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "resetScale2d"]],
    toImageButtonOptions: { format: "svg" },
  };
  const muted = () => getComputedStyle(document.documentElement).getPropertyValue("--muted").trim();
  const draw = () => pictures.forEach((picture, index) => {
    const layout = { ...picture.layout, font: { ...picture.layout.font, color: muted() } };
    Plotly.react(document.getElementById(`picture-${index}`), picture.data, layout, config);
  });
  addEventListener("DOMContentLoaded", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
