/* What the page was made from. */

const data = JSON.parse(document.getElementById("data").textContent);
