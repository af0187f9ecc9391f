"use strict";
// Put every figure in its place, and draw again when the width or the choice of models changes.

const KINDS = {
  loss: lossFigure,
  efficiency: efficiencyFigure,
  curves: curvesFigure,
  depth: depthFigure,
  speed: speedFigure,
};

const plots = [...document.querySelectorAll(".plot")].map((host) => {
  const controls = host.parentElement.querySelector(".controls");
  const render = KINDS[host.dataset.figure](host, controls, Number(host.dataset.group));
  host.redraw = () => {
    hideTip();
    host.replaceChildren();
    render(Math.floor(host.clientWidth));
  };
  return host;
});

function redrawAll() {
  for (const host of plots) host.redraw();
}

let width = 0;
new ResizeObserver(() => {
  // Only the width matters: drawing changes the height.
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  redrawAll();
}).observe(document.body);
addEventListener("scroll", hideTip, { passive: true });

const chips = [...document.querySelectorAll(".chip[data-model]")];
for (const chip of chips) {
  chip.addEventListener("click", () => {
    const label = chip.dataset.model;
    if (!hidden.delete(label)) hidden.add(label);
    chip.setAttribute("aria-pressed", String(!hidden.has(label)));
    redrawAll();
  });
}
document.getElementById("show-all")?.addEventListener("click", () => {
  // All models, or none when all are shown: a quick way to pick out a few.
  const all = hidden.size === 0;
  hidden.clear();
  for (const chip of chips) {
    if (all) hidden.add(chip.dataset.model);
    chip.setAttribute("aria-pressed", String(!all));
  }
  redrawAll();
});

for (const cell of document.querySelectorAll(".matrix .cell")) {
  const choose = () => {
    const figure = cell.closest("figure");
    figure.querySelector("[aria-selected]")?.removeAttribute("aria-selected");
    cell.setAttribute("aria-selected", "true");
    figure.querySelector(".chosen").textContent = cell.dataset.sentence;
  };
  cell.addEventListener("click", choose);
  cell.addEventListener("focus", choose);
}
