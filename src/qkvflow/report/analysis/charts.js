"use strict";
// The figures of an analysis: lines along depth, planes coloured by depth, heat maps.

const like = (index) => ({ index });

function panelHost(host, width, title) {
  const panel = make(host, "div", { className: "panel" });
  if (title) make(panel, "h4", { textContent: title });
  return panel;
}

// As many panels side by side as have room to be read.
function columnsFor(width, count, least = 300) {
  const most = count === 4 ? 2 : 3;
  const columns = Math.max(1, Math.min(count, Math.floor((width + 16) / (least + 16)), most));
  return { columns, each: Math.floor((width - 16 * (columns - 1)) / columns) };
}

function tickText(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(0).replace("e+", "e");
  return plain(size >= 1000 ? short(value) : String(Number(value.toPrecision(4))));
}

function verticalAxis(svg, scale, box, unit) {
  for (const value of scale.ticks(5)) {
    const tick = draw(svg, "g", { class: "tick" });
    const y = scale(value);
    draw(tick, "line", { x1: box.left, x2: box.right, y1: y, y2: y });
    draw(tick, "text", { x: box.left - 6, y: y + 4, "text-anchor": "end" }, tickText(value));
  }
  if (unit) draw(svg, "text", { class: "unit", x: 0, y: box.top - 10 }, unit);
}

// Parts of a line with gaps where there is no number.
function segments(xs, ys, x, y) {
  let path = "";
  let down = false;
  xs.forEach((value, i) => {
    if (ys[i] === null) { down = false; return; }
    path += `${down ? "L" : "M"}${x(value).toFixed(1)},${y(ys[i]).toFixed(1)}`;
    down = true;
  });
  return path;
}

function lines(host, chart, width) {
  const { each } = columnsFor(width, chart.panels.length, chart.panels.length > 1 ? 300 : 420);
  const wide = chart.panels.length > 1 ? each : Math.min(width, 760);
  for (const panel of chart.panels) {
    const holder = panelHost(host, wide, panel.title);
    const height = 250;
    const box = { left: 50, right: wide - 12, top: chart.y_label ? 26 : 10, bottom: height - 42 };
    const svg = canvas(holder, wide, height, `${chart.title}: ${panel.title || chart.y_label}`);
    const xs = panel.series.flatMap((one) => one.x);
    const low = Math.min(...xs), high = Math.max(...xs);
    const pad = low === high ? 0.5 : chart.dots ? 0.02 * (high - low) : 0;
    const x = linear([low - pad, high + pad], [box.left, box.right]);
    const known = panel.series.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])])
      .filter((value) => value !== null && (!chart.log || value > 0));
    const y = chart.log
      ? logarithmic(extent(known.map(Math.log), 0.08).map(Math.exp), [box.bottom, box.top])
      : linear(extent(known, 0.08), [box.bottom, box.top]);
    verticalAxis(svg, y, box, chart.y_label);
    axisX(svg, x, box, { count: Math.min(8, Math.floor(wide / 60)), format: (v) => tickText(Number(v.toFixed(6))), unit: chart.x_label });
    const [from, to] = chart.log ? [1, -1] : extent(known, 0.08);
    if (from < 0 && to > 0) draw(svg, "line", { class: "zero", x1: box.left, x2: box.right, y1: y(0), y2: y(0) });
    const named = panel.series.filter((one) => !one.faint);
    const crowd = named.length < panel.series.length;
    const marks = [];
    for (const one of panel.series) {
      const model = like(one.faint ? 0 : crowd ? 1 : named.indexOf(one));
      if (one.low && one.high) {
        const upper = one.x.map((v, i) => `${x(v).toFixed(1)},${y(one.high[i]).toFixed(1)}`);
        const lower = one.x.map((v, i) => `${x(v).toFixed(1)},${y(one.low[i]).toFixed(1)}`).reverse();
        draw(svg, "path", { class: `band ${colour(model)}`, d: `M${[...upper, ...lower].join("L")}Z` });
      }
      draw(svg, "path", { class: `${one.faint ? "thin" : "curve"} ${colour(model)}`, d: segments(one.x, one.y, x, y) });
      one.x.forEach((value, i) => {
        if (one.y[i] === null) return;
        if ((chart.dots || one.x.length < 2) && !one.faint) symbol(svg, like(model.index), x(value), y(one.y[i]), 3, "point");
        marks.push([x(value), y(one.y[i]), `${chart.x_label} ${tickText(value)}`, [[model, one.name, three(one.y[i])]]]);
      });
    }
    hoverable(svg, marks, 24);
    if (named.length > 1 || crowd) {
      const legend = make(holder, "p", { className: "legend" });
      for (const one of named) {
        const item = make(legend, "span");
        make(item, "i", { className: `swatch ${colour(like(crowd ? 1 : named.indexOf(one)))}` });
        item.append(one.name);
      }
    }
  }
}

// Between the stops of the palette of depth.
function depthColour(t) {
  const stops = DATA.depth;
  const place = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(place), stops.length - 2);
  return blend(stops[i], stops[i + 1], place - i);
}

function rgb(text) {
  if (text.startsWith("rgb")) return text.match(/[\d.]+/g).slice(0, 3).map(Number);
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
}

function blend(from, to, share) {
  const [a, b] = [rgb(from), rgb(to)];
  return `rgb(${a.map((value, i) => Math.round(value + share * (b[i] - value))).join(",")})`;
}

function plane(host, chart, width) {
  const { each } = columnsFor(width, chart.panels.length, chart.panels.length > 1 ? 280 : 420);
  const wide = chart.panels.length > 1 ? each : Math.min(width, 620);
  for (const cloud of chart.panels) {
    const holder = panelHost(host, wide, cloud.title);
    const height = Math.min(420, Math.round(wide * (chart.equal ? 1 : 0.75)));
    const box = { left: 50, right: wide - 12, top: 26, bottom: height - 42 };
    const svg = canvas(holder, wide, height, `${chart.title}: ${cloud.title}`);
    let dx = extent(cloud.x.flat(), 0.06), dy = extent(cloud.y.flat(), 0.06);
    if (chart.equal) {
      const unit = Math.max((dx[1] - dx[0]) / (box.right - box.left), (dy[1] - dy[0]) / (box.bottom - box.top));
      const around = ([low, high], size) => [(low + high - unit * size) / 2, (low + high + unit * size) / 2];
      dx = around(dx, box.right - box.left);
      dy = around(dy, box.bottom - box.top);
    }
    const x = linear(dx, [box.left, box.right]), y = linear(dy, [box.bottom, box.top]);
    verticalAxis(svg, y, box, chart.y_label);
    axisX(svg, x, box, { count: Math.floor(wide / 80), format: (v) => tickText(Number(v.toPrecision(6))), unit: chart.x_label });
    if (dx[0] < 0 && dx[1] > 0) draw(svg, "line", { class: "zero", x1: x(0), x2: x(0), y1: box.top, y2: box.bottom });
    if (dy[0] < 0 && dy[1] > 0) draw(svg, "line", { class: "zero", x1: box.left, x2: box.right, y1: y(0), y2: y(0) });
    const joined = Array.isArray(cloud.x[0]);
    const rows = joined ? cloud.x.map((_, i) => i) : [null];
    const marks = [];
    for (const row of rows) {
      const pick = (values) => (row === null ? values : values[row]);
      const [px, py, ts] = [pick(cloud.x).map(x), pick(cloud.y).map(y), pick(cloud.t)];
      if (joined) draw(svg, "path", { class: "path", d: `M${px.map((v, i) => `${v.toFixed(1)},${py[i].toFixed(1)}`).join("L")}` });
      px.forEach((at, i) => {
        draw(svg, "circle", { class: "spot", cx: at.toFixed(1), cy: py[i].toFixed(1), r: joined ? 3 : 2.2, fill: depthColour(ts[i]), "fill-opacity": 0.8 });
        const place = joined ? [[null, `token ${row + 1}, ${cloud.names[row]}`, `t = ${tickText(ts[i])}`]]
          : [[null, `${three(cloud.x[i])} ${cloud.y[i] < 0 ? "−" : "+"} ${three(Math.abs(cloud.y[i]))} i`, `t = ${tickText(ts[i])}`]];
        marks.push([at, py[i], "", place]);
      });
    }
    hoverable(svg, marks, 14);
  }
  const row = make(host, "div", { className: "whole" });
  const key = draw(row, "svg", { width: Math.min(width, 260), height: 34, role: "img", "aria-label": "colours of depth" });
  for (let i = 0; i < 40; i++) draw(key, "rect", { x: 20 + i * 5, y: 4, width: 5.5, height: 10, fill: depthColour(i / 39) });
  draw(key, "text", { class: "aside", x: 20, y: 30 }, "t = 0");
  draw(key, "text", { class: "aside", x: 220, y: 30, "text-anchor": "end" }, "t = 1");
}

function heat(host, chart, width) {
  const { each } = columnsFor(width, chart.panels.length, 280);
  const paper = getComputedStyle(document.body).backgroundColor;
  for (const panel of chart.panels) {
    const holder = panelHost(host, each, panel.title);
    const image = make(holder, "canvas");
    const [rows, columns] = [panel.values.length, panel.t.length];
    image.width = columns;
    image.height = rows;
    image.style.height = `${Math.max(60, Math.min(180, rows * 6))}px`;
    holder.style.width = `${each}px`;
    const middle = panel.values.map((row) => row.reduce((sum, value) => sum + value, 0) / columns);
    const away = panel.values.map((row, i) => row.map((value) => value - middle[i]));
    const most = Math.max(...away.flat().map(Math.abs)) || 1;
    const context = image.getContext("2d");
    away.forEach((row, i) => row.forEach((value, j) => {
      context.fillStyle = blend(paper, DATA.around[value < 0 ? 0 : 1], Math.abs(value) / most);
      context.fillRect(j, i, 1, 1);
    }));
    const note = `${chart.y_label} × t from ${tickText(Number(panel.t[0].toPrecision(2)))} to 1; ± ${three(most)}`;
    make(holder, "p", { className: "legend", textContent: note });
    const move = (event) => {
      const frame = image.getBoundingClientRect();
      const j = Math.min(columns - 1, Math.max(0, Math.floor(((event.clientX - frame.left) / frame.width) * columns)));
      const i = Math.min(rows - 1, Math.max(0, Math.floor(((event.clientY - frame.top) / frame.height) * rows)));
      showTip(event, panel.title, [[null, `entry ${i + 1}, t = ${tickText(panel.t[j])}`, three(panel.values[i][j])]]);
    };
    image.addEventListener("pointermove", move);
    image.addEventListener("pointerdown", move);
    image.addEventListener("pointerleave", hideTip);
  }
}

const KINDS = { lines, plane, heat };

function redrawAll() {
  hideTip();
  for (const host of document.querySelectorAll(".plot")) {
    const chart = DATA.charts[host.dataset.chart];
    host.replaceChildren();
    KINDS[chart.kind](host, chart, Math.floor(host.clientWidth));
  }
}

let width = 0;
new ResizeObserver(() => {
  // Only the width matters: drawing changes the height.
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  redrawAll();
}).observe(document.body);
// Heat maps are painted in the colours of the background.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("scroll", hideTip, { passive: true });

for (const piece of document.querySelectorAll("[data-tip]")) {
  const tell = (event) => {
    const box = piece.getBoundingClientRect();
    showTip({ clientX: event.clientX ?? box.left, clientY: event.clientY ?? box.top }, piece.dataset.tip, []);
  };
  piece.addEventListener("pointermove", tell);
  piece.addEventListener("focus", tell);
  piece.addEventListener("pointerleave", hideTip);
  piece.addEventListener("blur", hideTip);
}
