// Curves: one chart a metric, the shown runs over each other, a band of two standard errors where there is one.
"use strict";
let usual = [];  // title, metric, its standard error, least height of the y-axis: from the server
const added = [];
const drawn = new Map();  // metric → {plot, box, key}
// Charts out of sight are brought up to date once they are scrolled to: drawing takes time that a run beside may need.
const sight = new IntersectionObserver(entries => entries.forEach(({target, isIntersecting}) => {
  target.hiddenAway = !isIntersecting;
  if (isIntersecting && target.late) target.late();
}), {rootMargin: "100px"});

function series(run, metric, error) {
  const values = new Map(), errors = new Map();
  for (const row of run.rows) {
    if (row[metric] !== null && row[metric] !== undefined) values.set(row.step, row[metric]);
    if (error && row[error] !== null && row[error] !== undefined) errors.set(row.step, row[error]);
  }
  return {values, errors};
}

function smoothed(found, width) {
  if (!width) return found;
  const kept = found.map((value, place) => {
    const near = found.slice(Math.max(0, place - width), place + width + 1).filter(each => each !== null);
    return value === null ? null : near.reduce((sum, each) => sum + each, 0) / near.length;
  });
  return kept;
}

/** The columns of a chart: steps, then for each run its values, and where there are errors its two bounds. */
function columns(metric, error) {
  const found = shown().map(run => ({run, ...series(run, metric, error)})).filter(each => each.values.size);
  const steps = [...new Set(found.flatMap(each => [...each.values.keys()]))].sort((a, b) => a - b);
  const width = Number(document.getElementById("smooth").value);
  const data = [steps], lines = [], bands = [];
  for (const {run, values, errors} of found) {
    const plain = steps.map(step => values.has(step) ? values.get(step) : null);
    data.push(smoothed(plain, width));
    lines.push({label: run.name, stroke: colour(run.place), width: 2, spanGaps: true, points: {size: 5, show: values.size < 40}});
    if (errors.size) {
      for (const sign of [1, -1]) {
        data.push(steps.map(step => values.has(step) && errors.has(step) ? values.get(step) + sign * 1.96 * errors.get(step) : null));
        lines.push({stroke: "transparent", spanGaps: true, points: {show: false}});
      }
      bands.push({series: [lines.length - 1, lines.length], fill: `${colour(run.place)}2a`});
    }
  }
  return {data, lines, bands, found};
}

function draw([title, metric, error, least]) {
  const before = drawn.get(metric);
  if (before) before.box.late = before.box.hiddenAway ? () => draw([title, metric, error, least]) : null;
  if (before && before.box.hiddenAway) return;
  const {data, lines, bands, found} = columns(metric, error);
  if (!found.length) {
    if (before) { before.plot.destroy(); before.box.remove(); drawn.delete(metric); }
    return;
  }
  const key = JSON.stringify([found.map(each => each.run.name), lines.length, dark.matches]);
  const box = before ? before.box : el("figure", {class: "chart", style: "margin:0"}, el("h2", {}, el("output"), title));
  const width = Math.max(200, (box.clientWidth || 400) - 22);
  if (before && before.key === key) {
    before.plot.setData(data);
    if (before.plot.width !== width) before.plot.setSize({width, height: 190});
  } else {
    if (before) before.plot.destroy();
    else { document.getElementById("charts").append(box); sight.observe(box); }
    const axis = {stroke: css("--faint"), grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line"), width: 1, size: 4}};
    const plot = new uPlot({
      width: Math.max(200, box.clientWidth - 22), height: 190, cursor: {y: false}, legend: {show: false},
      scales: {x: {time: false}, y: {range: (_, low, high) => span(low, high, least)}}, series: [{}, ...lines], bands,
      axes: [{...axis, size: 28}, {...axis, size: 62, values: (_, ticks) => labels(ticks)}],
      hooks: {setCursor: [plot => told(box, plot, found, plot.cursor.idx)]},
    }, data, box);
    drawn.set(metric, {plot, box, key});
  }
  told(box, drawn.get(metric).plot, found, null);
}

/** The values at the cursor, else the last ones, beside the title. */
function told(box, plot, found, place) {
  const step = place === null || place === undefined ? null : plot.data[0][place];
  const words = found.map(({run, values}) => {
    const at = step !== null && values.has(step) ? step : step === null ? [...values.keys()].pop() : null;
    return at === null ? null : el("span", {style: `color:${colour(run.place)};margin-left:10px;white-space:nowrap`}, number(values.get(at)));
  });
  const spaced = words.filter(Boolean).flatMap(word => [" ", word]);  // between which lines may end
  box.querySelector("output").replaceChildren(step === null ? "" : `step ${step}`, ...spaced);
}

function drawAll() {
  if (document.getElementById("curves").hidden) return;
  [...usual, ...added.map(metric => [metric, metric])].forEach(draw);
  const known = new Set([...usual.map(each => each[1]), ...added]);
  const names = [...new Set(shown().flatMap(run => Object.keys(run.rows[run.rows.length - 1] || {})))]
    .filter(name => !known.has(name) && name !== "step" && name !== "time").sort();
  const select = document.getElementById("more");
  if (select.options.length !== names.length + 1)
    select.replaceChildren(el("option", {value: ""}, "a metric …"), ...names.map(name => el("option", {value: name}, name)));
}
