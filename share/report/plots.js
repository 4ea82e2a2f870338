/* SPDX-License-Identifier: Apache-2.0 */
/* For share/report/page.html: texts, tables, plots, timelines. */
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const GiB = 2 ** 30;
const phone = () => innerWidth < 640;

/* -- Text ----------------------------------------------------------------------------------- */

/* Markup of the library is plain text, too. */
const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");
const number = (x, digits = 0) => x == null || !isFinite(x) ? "–"
  : x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const ms = x => number(x, x < 100 ? 1 : 0);
const gib = x => number(x / GiB, 1);

/* "55 GB/s", "5 us", "0.81". */
function quantity(value, unit) {
  if (value == null) return "–";
  const own = unit === "1" ? "" : " " + unit, short = x => Number(x.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 9 });
  if (unit === "ns") return value >= 1e6 ? short(value / 1e6) + " ms" : value >= 1e3 ? short(value / 1e3) + " µs" : short(value) + " ns";
  const step = unit === "1" || Math.abs(value) < 1e4 ? 0 : Math.min(5, Math.floor(Math.log10(Math.abs(value)) / 3));
  return short(value / 1000 ** step) + (step ? " " + " kMGTP"[step] + unit : own);
}

function add(parent, tag, text, kind) {
  const element = document.createElement(tag);
  if (text != null) element.textContent = text;
  if (kind) element.className = kind;
  parent.append(element);
  return element;
}

function list(parent, texts) {
  const ul = add(parent, "ul");
  for (const text of texts) add(ul, "li", text);
}

/* columns: [heading, row => text, class]; mark: row => class of the row. */
function table(parent, columns, rows, mark) {
  const element = add(add(parent, "div", null, "scroll"), "table");
  const head = add(add(element, "thead"), "tr"), body = add(element, "tbody");
  for (const [heading, , kind] of columns) add(head, "th", heading, kind);
  for (const row of rows) {
    const line = add(body, "tr", null, mark ? mark(row) : "");
    for (const [, cell, kind] of columns) add(line, "td", cell(row), kind);
  }
}

/* -- Plots ---------------------------------------------------------------------------------- */

/* Okabe and Ito's colours, which the colour-blind tell apart. */
const C = { blue: "#0072b2", sky: "#56b4e9", green: "#009e73", orange: "#e69f00",
  red: "#d55e00", pink: "#cc79a7", yellow: "#f0e442", black: "#000", grey: "#999" };
const SERIES = [C.blue, C.red, C.green, C.orange, C.pink, C.sky, C.black, C.yellow];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "hexagon"];
const plots = [], waiting = [];

/* Leaves room for a plot, which is drawn once all text is there. after: of the drawn box. */
function plot(parent, id, traces, layout, height, after) {
  const box = add(parent, "div", null, "plot");
  box.id = id;
  box.style.minHeight = height + "px";
  const all = Object.assign({
    height, margin: { l: phone() ? 62 : 130, r: 12, t: 26, b: 44 }, paper_bgcolor: "#fff",
    plot_bgcolor: "#fff", font: { size: phone() ? 10 : 12, color: "#1a1a1a" },
    hoverlabel: { align: "left", bgcolor: "#fff" }, hovermode: "closest",
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
  }, layout);
  waiting.push(() => Plotly.newPlot(box, traces, all, { responsive: true, displaylogo: false, displayModeBar: !phone(),
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] })
    && after && after(box));
  plots.push(box);
}

/* Draws one plot after the other, so that the text can be read before; then calls `end`. */
function drawWaiting(end) {
  if (waiting.length === 0) return end();
  waiting.shift()();
  setTimeout(() => drawWaiting(end));
}

const grid = { gridcolor: "#e3e3e3", zeroline: false, linecolor: "#555", ticks: "outside" };

/* A page in print has another width than the window. The first layout still has the margin of the
   window's legend, the second that of the new one. */
addEventListener("beforeprint", () => {
  while (waiting.length) waiting.shift()();
  for (const width of [689, 690]) plots.forEach(p => Plotly.relayout(p, { width }));
});
addEventListener("afterprint", () => plots.forEach(p => Plotly.relayout(p, { autosize: true, width: null })));

/* -- Timelines ------------------------------------------------------------------------------ */

const GROUPS = [
  ["forward", C.blue, /^forward$/],
  ["backward", C.sky, /^backward$/],
  ["collectives", C.pink, /all_gather|all_reduce|reduce_scatter/],
  ["copies to the GPU", C.green, /h2d|weight_place/],
  ["copies to the host", C.yellow, /d2h/],
  ["update on the CPU", C.red, /cpu/],
  ["update on the GPU", C.orange, /adamw|newton|cast_gpu|grad_bucket/],
  ["host thread, waits", C.grey, /./],
];
const groupOf = kind => GROUPS.findIndex(([, , pattern]) => pattern.test(kind));

/* Rows of the figure: each lane once, with the timelines that have it one below the other. */
function lanesOf(timelines) {
  const names = [], rows = [];
  for (const t of timelines) for (const lane of t.lanes) if (!names.includes(lane)) names.push(lane);
  for (const lane of names) for (const t of timelines) {
    const at = t.lanes.indexOf(lane);
    if (at >= 0 && t.lane && t.lane.includes(at))
      rows.push({ t, at, name: timelines.length > 1 ? `${lane} · ${t.title}` : lane });
  }
  return rows;
}

/* Bars of one row within [from, to]. Neighbours of one group that would be narrower than a pixel
   are one bar until one zooms in. */
function barsOf(row, from, to, into) {
  const { t, at } = row, least = (to - from) / 1200;
  let last = null;
  for (const i of t.byLane[at]) {
    const begin = t.begin_ms[i], length = t.length_ms[i], end = begin + length;
    if (end < from || begin > to) continue;
    const group = t.group[i];
    if (last && last.group === group && begin - last.end < least && end - last.begin < 4 * least) {
      last.end = end, last.busy += length, last.n++;
      continue;
    }
    last = { row, group, begin, end, busy: length, n: 1, i };
    into.push(last);
  }
}

function barTraces(rows, from, to) {
  const bars = [], y = new Map(rows.map((row, i) => [row, i]));
  rows.forEach(row => barsOf(row, from, to, bars));
  return GROUPS.map(([name, color], group) => {
    const own = bars.filter(b => b.group === group);
    return {
      type: "bar", orientation: "h", name, xaxis: "x", yaxis: "y", width: 0.84,
      base: own.map(b => b.begin), x: own.map(b => b.end - b.begin), y: own.map(b => y.get(b.row)),
      marker: { color, line: { width: 0 } }, showlegend: own.length > 0,
      customdata: own.map(b => [
        plain(b.n > 1 ? `${b.n} operations, first ${b.row.t.label[b.i]}` : b.row.t.label[b.i]),
        `${number(b.begin, 3)} to ${number(b.end, 3)} ms`, number(b.busy, 3), plain(b.row.name)]),
      hovertemplate: "%{customdata[0]}<br>%{customdata[1]}, busy %{customdata[2]} ms" +
        "<br>%{customdata[3]}<extra></extra>",
    };
  });
}

/* Curves of the counters that `wanted` takes, on y axis `axis`. */
function curves(timelines, axis, wanted, scale, digits, unit) {
  const traces = [];
  for (const t of timelines) for (const c of t.counters) {
    const show = wanted(c);
    const many = timelines.length > 1;
    if (!show || (many && show === "later")) continue;
    const color = SERIES[traces.length % SERIES.length];
    traces.push({
      type: "scatter", mode: "lines", xaxis: "x", yaxis: axis, x: c.time_ms.concat(t.makespan_ms),
      y: c.value.concat(c.value[c.value.length - 1]).map(v => v / scale),
      name: plain(many ? `${c.name} · ${t.title}` : c.name), legend: axis === "y3" ? "legend3" : "legend2",
      line: { shape: "hv", width: 1.6, color, dash: ["solid", "dash", "dot"][Math.floor(traces.length / 8) % 3] },
      visible: show === "later" || (many && t !== timelines[0] && axis !== "y2") ? "legendonly" : true,
      hovertemplate: `%{y:.${digits}f} ${unit} at %{x:.2f} ms<extra>${plain(c.name)}</extra>`,
      capacity: c.capacity / scale,
    });
  }
  return traces;
}

/* Adds the group of each operation, and the operations of each lane in the order of time. */
function sortOperations(t) {
  t.byLane = t.lanes.map(() => []);
  if (!t.lane) return;
  const groups = t.kinds.map(groupOf);
  t.group = t.kind.map(k => groups[k]);
  t.lane.forEach((lane, i) => t.byLane[lane].push(i));
  for (const ids of t.byLane) ids.sort((a, b) => t.begin_ms[a] - t.begin_ms[b]);
}

/* A line at its begin, and its name where there is room. */
function markPhase(phase, end, layout) {
  layout.shapes.push({ type: "line", yref: "paper", y0: 0, y1: 1, x0: phase.begin_ms, x1: phase.begin_ms,
    line: { color: "#555", width: 1, dash: "dot" } });
  const room = (phase.end_ms - phase.begin_ms) / end;
  if (room > (phone() ? .2 : .07)) layout.annotations.push({ x: phase.begin_ms, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left",
    showarrow: false, text: phase.name, font: { size: 11, color: "#555" } });
}

function timelineFigure(parent, timelines) {
  timelines.forEach(sortOperations);
  const rows = lanesOf(timelines), end = Math.max(...timelines.map(t => t.makespan_ms));
  const memory = curves(timelines, "y2", c => c.name.endsWith("gpu memory"), GiB, 2, "GiB");
  const rates = curves(timelines, "y3", c => c.unit === "bytes_per_s" &&
    (/(^|\.| )(dram|h2d|d2h)$/.test(c.name) ? true : "later"), 1e9, 1, "GB/s");
  const panels = 1 + (memory.length > 0) + (rates.length > 0);
  const lanes = Math.max(rows.length, 1) * (phone() ? 20 : 24), extra = 190;
  const keys = (phone() ? 2 : 4) * (timelines.length > 1 ? 1 : 2); /* of the legend, in a row */
  const gap = 26 + 17 * Math.ceil(rates.length / keys), above = phone() ? 120 : 100;
  const inner = lanes + (panels - 1) * (extra + gap), height = inner + above + 44;
  let top = 1;
  const domain = px => {
    const own = [Math.max(0, top - px / inner), top];
    top = own[0] - gap / inner;
    return own;
  };
  const legend = y => ({ orientation: "h", x: 0, y, yanchor: "bottom" });
  const layout = {
    barmode: "overlay", dragmode: "zoom",
    yaxis: Object.assign({}, grid, { domain: domain(lanes), fixedrange: true, range: [rows.length - .5, -.5],
      tickvals: rows.map((_, i) => i), ticktext: rows.map(r => plain(r.name)), gridcolor: "#f3f3f3" }),
    xaxis: Object.assign({}, grid, { range: [0, end], title: { text: "ms" } }),
    margin: { l: timelines.length > 1 ? (phone() ? 110 : 190) : 70, r: 12, t: above, b: 44 },
    shapes: [], annotations: [], showlegend: true, legend: legend(1 + 18 / inner),
  };
  if (memory.length) {
    memory.forEach(m => { m.showlegend = memory.length > 1; });
    layout.legend2 = legend(top);
    layout.yaxis2 = Object.assign({}, grid, { domain: domain(extra), fixedrange: true, rangemode: "tozero",
      title: { text: "GPU memory, GiB" } });
    const full = Math.max(...memory.map(m => m.capacity || 0));
    if (full > 0) layout.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, yref: "y2", y0: full, y1: full,
      line: { color: C.red, dash: "dash", width: 1.5 } });
  }
  if (rates.length) {
    layout.legend3 = legend(top);
    layout.yaxis3 = Object.assign({}, grid, { domain: domain(extra), fixedrange: true, rangemode: "tozero",
      title: { text: "GB/s" } });
  }
  layout.xaxis.anchor = rates.length ? "y3" : memory.length ? "y2" : "y";
  for (const phase of timelines[0].phases) markPhase(phase, end, layout);
  const others = memory.concat(rates);
  others.forEach(t => delete t.capacity);
  plot(parent, "timelines", barTraces(rows, 0, end).concat(others), layout, height, box => redrawZoomed(box, rows, end));
}

/* After a zoom, the bars of the range in view in full detail. */
function redrawZoomed(box, rows, end) {
  let drawn = "0 " + end;
  box.on("plotly_relayout", () => {
    const [from, to] = box.layout.xaxis.range, key = from + " " + to;
    if (key === drawn) return;
    drawn = key;
    const fresh = barTraces(rows, from, to);
    fresh.forEach((t, i) => { t.visible = box.data[i].visible; });
    Plotly.react(box, fresh.concat(box.data.slice(GROUPS.length)), box.layout);
  });
}

function timelineSection(timelines) {
  if (timelines.length === 0) return;
  add(main, "h2", "Timelines");
  for (const t of timelines) {
    if (!t.lane) add(main, "p", `${t.title}: ${number(t.operations)} operations are too many for a page; ` +
      "a larger --subgroup makes fewer. Its curves are below.", "note");
    if (t.iterations > 1) add(main, "p", `${t.title}: ${t.iterations} iterations, because their ends and begins overlap. ` +
      "Phases are those of the last.", "note");
  }
  add(main, "p", "Drag across the figure to zoom, double-click to see all; a click on the legend hides or shows.",
    "note screen");
  if (timelines.length > 1) add(main, "p", `Dotted lines: the phases of ${timelines[0].title}. ` +
    "Dashed line: the largest memory of a GPU here.", "note");
  timelineFigure(main, timelines);
}
