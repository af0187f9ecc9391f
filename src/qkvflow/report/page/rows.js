"use strict";
// Figures with one row per model: losses, speed, memory.

// `items`: {model, values, low, high, middle, tips}; low to high is the bar, values are the dots.
function rowFigure(host, { width, items, domain, unit, format, label, lines = [], stems = false, title = null }) {
  const narrow = width < 560;
  const gutter = narrow ? 4 : Math.min(210, 16 + Math.max(...items.map((i) => widthOf(i.model.label, 600))));
  const rowHeight = narrow ? 44 : 32;
  const head = (lines.length ? 30 : 8) + (title ? 20 : 0);
  const box = { left: gutter, right: width - 14, top: head, bottom: head + items.length * rowHeight };
  const svg = canvas(host, width, box.bottom + 42, label);
  const x = linear(domain, [box.left + 4, box.right]);
  axisX(svg, x, box, { count: Math.max(3, Math.floor((box.right - box.left) / 75)), format, unit });
  if (title) draw(svg, "text", { class: "title", x: 0, y: 14 }, title);
  baselineMarks(svg, lines, x, box);
  const marks = [];
  items.forEach((item, number) => {
    const y = box.top + (number + 0.5) * rowHeight + (narrow ? 8 : 0);
    const group = draw(svg, "g", { class: `row ${colour(item.model)}`, "data-model": item.model.label });
    const name = narrow
      ? { x: box.left, y: y - 15, class: "name halo" }
      : { x: box.left - 10, y: y + 4, "text-anchor": "end", class: "name" };
    draw(group, "text", name, item.model.label);
    if (stems) draw(group, "line", { class: "stem", x1: x(0), x2: x(item.middle), y1: y, y2: y });
    if (item.low !== null) {
      const [from, to] = [x(item.low), x(item.high)];
      draw(group, "rect", { class: "range", x: from, width: Math.max(1, to - from), y: y - 9, height: 18, rx: 2 });
    }
    item.values.forEach((value, place) => {
      // A fixed spread keeps dots apart; their height means nothing.
      const lift = item.values.length > 1 ? ((place * 2) % 5) - 2 : 0;
      const at = [x(value), y + 2.6 * lift];
      symbol(group, item.model, at[0], at[1], 3.6, "dot");
      marks.push([...at, item.model.label, item.tips(place)]);
    });
    if (item.values.length) {
      draw(group, "line", { class: "mean", x1: x(item.middle), x2: x(item.middle), y1: y - 10, y2: y + 10 });
    } else symbol(group, item.model, x(item.middle), y, 5, "point");
    if (item.note) {
      const end = x(Math.max(item.middle, ...item.values)) + 8;
      draw(group, "text", { class: "aside halo", x: end, y: y + 4 }, item.note);
    }
    marks.push([x(item.middle), y, item.model.label, item.tips(null)]);
  });
  hoverable(svg, marks);
}

// Vertical lines with a name on top; names that would touch are moved to a second line or left out.
function baselineMarks(svg, lines, x, box) {
  const ends = [-Infinity, -Infinity];
  for (const line of [...lines].sort((a, b) => a.value - b.value)) {
    const at = x(line.value);
    if (at < box.left || at > box.right) continue;
    draw(svg, "line", { class: "baseline", x1: at, x2: at, y1: box.top - 4, y2: box.bottom });
    const half = widthOf(line.name) / 2;
    const middle = Math.min(Math.max(at, half), box.right - half + 10);
    const level = ends.findIndex((end) => middle - half > end + 6);
    if (level < 0) continue;
    ends[level] = middle + half;
    draw(svg, "text", { class: "aside", x: middle, y: box.top - 9 - 13 * level, "text-anchor": "middle" }, line.name);
  }
}

function lossFigure(host, controls, group) {
  const metric = DATA.metric;
  const baselines = DATA.groups[group].baselines
    .filter((b) => b.loss[metric] !== null)
    .map((b) => ({ name: `${b.name} ${b.loss[metric].toFixed(3)}`, value: b.loss[metric], order: b.order }));
  let range = "models";
  const options = [["models", "models"], ["all", "with every n-gram"]];
  if (baselines.length) choice(controls, "range", options, range, (value) => ((range = value), host.redraw()));
  return (width) => {
    const items = visible(group)
      .filter((model) => model.mean !== null)
      .map((model) => ({
        model,
        values: model.seeds.map((seed) => seed.value),
        low: model.low,
        high: model.high,
        middle: model.mean,
        tips: (place) =>
          place === null
            ? [
                [null, "mean", `${nats(model.mean)} nats`],
                ...(model.low === null ? [] : [[null, "95 % interval", `${nats(model.low)} – ${nats(model.high)}`]]),
                [null, "seeds", String(model.seeds.length)],
              ]
            : [[null, `seed ${model.seeds[place].seed}`, `${nats(model.seeds[place].value)} nats`]],
      }));
    if (!items.length) return empty(host);
    const own = items.flatMap((item) => [...item.values, item.low, item.high]);
    let domain = extent(own);
    const trigram = baselines.find((b) => b.order === 3);
    if (range === "all") domain = extent([...own, ...baselines.map((b) => b.value)]);
    else if (trigram) {
      const wider = extent([...own, trigram.value]);
      if (wider[1] - wider[0] < 2 * (domain[1] - domain[0])) domain = wider;
    }
    const off = baselines.filter((b) => b.value < domain[0] || b.value > domain[1]);
    if (off.length) {
      make(host, "p", { className: "note", textContent: `Off the axis: ${off.map((b) => b.name).join(", ")}.` });
    }
    rowFigure(host, {
      width,
      items,
      domain,
      unit: `${metric} loss, nats per token`,
      format: fixed,
      label: `${metric} loss of each seed, with intervals`,
      lines: baselines,
    });
  };
}

function speedFigure(host) {
  return (width) => {
    const shown = DATA.models.filter((model) => !hidden.has(model.label));
    const timed = shown.filter((model) => model.speed).sort((a, b) => a.speed.median - b.speed.median);
    const sized = shown.filter((model) => model.memory !== null).sort((a, b) => a.memory - b.memory);
    const half = width >= 900 && sized.length ? (width - 16) / 2 : width;
    if (!timed.length) return empty(host);
    const times = timed.map((model) => ({
      model,
      values: model.speed.rounds,
      low: model.speed.q1,
      high: model.speed.q3,
      middle: model.speed.median,
      note: `${three(model.speed.median)} ms`,
      tips: (place) => (place === null ? speedTip(model.speed) : [[null, `${model.speed.measured ? "round" : "run"} ${place + 1}`, `${three(model.speed.rounds[place])} ms`]]),
    }));
    const longest = Math.max(...times.flatMap((item) => [...item.values, item.high]));
    rowFigure(host, {
      width: half,
      items: times,
      domain: [0, longest * 1.16],
      unit: "milliseconds per training step",
      format: (value) => plain(three(value)),
      label: "milliseconds per step",
      stems: true,
      title: "Time per step",
    });
    if (!sized.length) return;
    const scale = 2 ** (10 * Math.floor(Math.log2(Math.max(...sized.map((m) => m.memory))) / 10));
    const unit = { [2 ** 10]: "KiB", [2 ** 20]: "MiB", [2 ** 30]: "GiB", [2 ** 40]: "TiB" }[scale] || "bytes";
    rowFigure(host, {
      width: half,
      items: sized.map((model) => ({
        model,
        values: [],
        low: null,
        high: null,
        middle: model.memory / scale,
        note: bytes(model.memory),
        tips: () => [[null, "memory", bytes(model.memory)]],
      })),
      domain: [0, (Math.max(...sized.map((m) => m.memory)) / scale) * 1.22],
      unit: `memory, ${unit}`,
      format: (value) => plain(three(value)),
      label: "memory of a training step",
      stems: true,
      title: "Memory",
    });
  };
}

function speedTip(speed) {
  const lines = [
    [null, "median", `${three(speed.median)} ms`],
    [null, "quartiles", `${three(speed.q1)} – ${three(speed.q3)} ms`],
  ];
  if (speed.tokensPerSecond !== null) lines.push([null, "tokens per second", short(speed.tokensPerSecond)]);
  if (speed.compileSeconds !== null) lines.push([null, "compilation", `${three(speed.compileSeconds)} s`]);
  return lines;
}

function empty(host) {
  make(host, "p", { className: "note", textContent: "No model is chosen." });
}
