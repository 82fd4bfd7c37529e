/* Whoever is led to something that is folded finds it open; whoever prints, everything. */

function unfold(target) {
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target?.scrollIntoView();
}

function unfoldTarget() {
  try { unfold(document.getElementById(decodeURIComponent(location.hash.slice(1)))); } catch { /* no address of this page */ }
}

addEventListener("hashchange", unfoldTarget);
addEventListener("load", unfoldTarget);
addEventListener("beforeprint", () => document.querySelectorAll("details.fold").forEach((fold) => { fold.open = true; }));
