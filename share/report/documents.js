/* SPDX-License-Identifier: Apache-2.0 */
/* For share/report/page.html: the answer and the sections of each kind of document. */
"use strict";

/* -- Schedules ------------------------------------------------------------------------------ */

function titleOf(s) {
  if (s.title) return s.title;
  const set = s.settings, parts = [s.policy];
  if (set.stride > 0) parts.push(`k=${set.stride}`);
  if (set.ratio > 0 && set.ratio < 1) parts.push(`r=${set.ratio.toFixed(2)}`);
  if (set.overlap !== "none") parts.push(`overlap ${set.overlap}`);
  return parts.join(" ");
}

const interval = s => s.uncertainty && s.uncertainty.iteration_low_ms != null
  ? [s.uncertainty.iteration_low_ms, s.uncertainty.iteration_high_ms] : null;

function rankedTable(parent, schedules) {
  const no = schedules.filter(s => !s.feasible), last = ["does not fit", s => s.problem, "text long"];
  const columns = [
    ["", s => s.rank ? s.rank : "", ""],
    ["schedule", titleOf, "text"],
    ["runtime", s => s.runtime, "text minor"],
    ["iteration ms", s => ms(s.iteration_ms), ""],
    ["95 %", s => interval(s) ? interval(s).map(ms).join(" to ") : "", "minor"],
    ["forward", s => ms(s.fwd_ms), "minor"],
    ["backward", s => ms(s.bwd_ms), "minor"],
    ["update", s => ms(s.update_ms), "minor"],
    ["tokens/s", s => number(s.tokens_per_s), ""],
    ["GPU GiB", s => gib(s.gpu_memory.peak_bytes), ""],
    ["host GiB", s => gib(s.host_peak_bytes), "minor"],
  ];
  if (no.length < schedules.length)
    table(parent, columns, schedules.filter(s => s.feasible), s => s === schedules[0] ? "best" : "");
  if (no.length === 0) return;
  const box = add(parent, "details");
  box.open = no.length === schedules.length;
  add(box, "summary", `${no.length} schedules that do not fit`);
  table(box, columns.slice(1, 4).concat([last]), no);
}

/* Which points no other one beats in both. */
function front(points) {
  let least = Infinity;
  return points.slice().sort((a, b) => a.x - b.x || a.y - b.y).filter(p => p.y < least && ((least = p.y), true));
}

/* points: {x, y, text, group}. */
function paretoFigure(parent, id, points, xTitle, yTitle) {
  const best = front(points), groups = [...new Set(points.map(p => p.group))];
  const traces = groups.map((group, i) => {
    const own = points.filter(p => p.group === group);
    return { type: "scatter", mode: "markers", name: plain(group), x: own.map(p => p.x), y: own.map(p => p.y),
      marker: { color: SERIES[i % 8], size: 9, symbol: SYMBOLS[i % 8], line: { width: 1, color: "#fff" } },
      customdata: own.map(p => plain(p.text)),
      hovertemplate: "%{customdata}<br>%{x:,.1f}, %{y:,.2f}<extra></extra>" };
  });
  traces.push({ type: "scatter", mode: "lines", name: "best compromises", x: best.map(p => p.x), y: best.map(p => p.y),
    line: { shape: "hv", color: C.black, width: 1.2, dash: "dot" }, hoverinfo: "skip" });
  plot(parent, id, traces, {
    xaxis: Object.assign({}, grid, { title: { text: xTitle } }), yaxis: Object.assign({}, grid, { title: { text: yTitle } }),
    margin: { l: 62, r: 12, t: phone() ? 150 : 90, b: 48 } }, phone() ? 440 : 480);
}

/* -- Where errors come from, where quantities come from ------------------------------------- */

function causesFigure(parent, id, uncertainty) {
  const causes = uncertainty.quantities.filter(q => q.effect_pct > 0.05).slice(0, 12).reverse();
  if (causes.length === 0) return;
  const origins = [...new Set(causes.map(q => q.origin))];
  const color = { measured: C.blue, fitted: C.sky, "data sheet": C.orange, default: C.red };
  plot(parent, id, origins.map(origin => {
    const own = causes.filter(q => q.origin === origin);
    return { type: "bar", orientation: "h", name: plain(origin), y: own.map(q => plain(q.key)), x: own.map(q => q.effect_pct),
      marker: { color: color[origin] || C.grey },
      customdata: own.map(q => [number(q.error_pct, 1), plain(q.kind)]),
      hovertemplate: "%{y}: ± %{customdata[0]} % (%{customdata[1]}) makes ± %{x:.1f} % of the iteration<extra></extra>" };
  }), { xaxis: Object.assign({}, grid, { title: { text: "± % of the iteration", standoff: 6 } }),
    yaxis: Object.assign({}, grid, { categoryorder: "array", categoryarray: causes.map(q => plain(q.key)), automargin: true }),
    margin: { l: 20, r: 12, t: 60, b: 44 } }, 120 + 24 * causes.length);
}

function originsTable(parent, explain) {
  const rows = Object.entries(explain), count = {};
  for (const [, q] of rows) count[q.origin] = (count[q.origin] || 0) + 1;
  add(parent, "p", `${rows.length} quantities: ` +
    Object.entries(count).map(([origin, n]) => `${n} ${origin}`).join(", ") + ".");
  table(parent, [
    ["quantity", r => r[0], "text"],
    ["value", r => quantity(r[1].value, r[1].unit), ""],
    ["± %", r => r[1].error == null ? "" : number(100 * r[1].error, 1), "minor"],
    ["origin", r => r[1].origin, "text"],
    ["source", r => r[1].source, "text long wide"],
  ], rows);
}

/* -- Documents ------------------------------------------------------------------------------ */

function answer(parent, heading, fits, figure, lines) {
  const box = add(parent, "div", null, fits ? "answer" : "answer no");
  add(box, "h1", heading);
  add(box, "div", figure, "figure");
  for (const line of lines) if (line) add(box, "p", line);
}

/* Of one job no line. */
const jobsLine = jobs => !jobs ? "" : `${jobs.count} equal jobs at once on each node, in step, each on ${jobs.gpus} ` +
  `GPU${jobs.gpus === 1 ? "" : "s"}: times are of one, host memory is of all` +
  (jobs.others_idle_ms == null ? "" : `; ${ms(jobs.others_idle_ms)} ms with the others idle, ${number(jobs.tokens_per_s)} tokens/s together`);

function scheduleAnswer(parent, heading, s, lines) {
  const range = interval(s);
  answer(parent, heading, s.feasible,
    s.feasible ? `${ms(s.iteration_ms)} ms an iteration, ${number(s.tokens_per_s)} tokens/s` : "does not fit",
    [titleOf(s) + ` under ${s.runtime}` + (range ? `; 95 % interval ${range.map(ms).join(" to ")} ms` : ""),
      s.feasible ? `GPU memory ${gib(s.gpu_memory.peak_bytes)} of ${gib(s.gpu_memory.capacity_bytes)} GiB, ` +
        `host memory ${gib(s.host_peak_bytes)} of ${gib(s.host_capacity_bytes)} GiB` : s.problem + (s.advice ? "; " + s.advice : ""),
      ...lines]);
}

function sharedSections(name, d, uncertainty) {
  if (uncertainty && uncertainty.quantities && uncertainty.quantities.length) {
    add(main, "h2", `What makes the prediction uncertain: ${name}`);
    causesFigure(main, "causes-" + plots.length, uncertainty);
    const next = uncertainty.measure_next;
    if (next) add(main, "p", `Measure next: ${next.key} (${next.by}).`);
  }
  if (d.explain) {
    add(main, "h2", `Where each quantity comes from: ${name}`);
    originsTable(main, d.explain);
  } else add(main, "p", `${name}: with --explain the page lists every quantity with its origin.`, "note");
}

const PAGES = {
  "hocket.plan_ranking/1": {
    answer(parent, d) {
      const c = d.certificate;
      scheduleAnswer(parent, `${d.model} on ${d.machine}`, d.schedules[0], [
        jobsLine(d.jobs),
        `${d.job.nodes} x ${d.job.gpus} GPUs, tp ${d.job.tp}, micro-batch ${d.job.micro_batch}, grad-accum ${d.job.grad_accum}, ` +
          `seq ${number(d.job.seq)}`,
        c && c.gap_pct != null ? `No division of the update is faster than ${ms(c.bound_ms)} ms: ` +
          `the gap is ${number(c.gap_pct, 1)} %, bound by ${c.binding}` : "",
        d.search && d.search.evaluated ? `Searched ${number(d.search.evaluated)} schedules in ${number(d.search.seconds, 1)} s` : "",
        d.schedules[0].feasible ? d.reason : ""]);
    },
    sections(name, d) {
      add(main, "h2", `Schedules: ${name}`);
      rankedTable(main, d.schedules);
      const fit = d.schedules.filter(s => s.feasible);
      if (fit.length > 1) {
        add(main, "h2", `Time against memory: ${name}`);
        paretoFigure(main, "pareto-" + plots.length, fit.map(s => ({ x: s.gpu_memory.peak_bytes / GiB, y: s.iteration_ms,
          text: titleOf(s), group: s.policy + (s.runtime === "hocket" ? "" : `, ${s.runtime}`) })),
          "GPU memory, GiB", "iteration, ms");
      }
      if (d.advice && d.advice.length) {
        add(main, "h2", `Changes of the job to try: ${name}`);
        list(main, d.advice.map(a => `${a.options}: ${number(a.tokens_per_s)} tokens/s` +
          (a.gain ? `, ${number(a.gain, 2)} x` : "") + `, ${ms(a.iteration_ms)} ms an iteration (${a.policy}, ${a.runtime})`));
      }
      sharedSections(name, d, d.uncertainty);
    },
  },
  "hocket.forecast/1": {
    answer(parent, d, input) {
      scheduleAnswer(parent, d.model ? `${d.model} on ${d.machine}` : input.name, d, [
        jobsLine(d.jobs),
        `forward ${ms(d.fwd_ms)}, backward ${ms(d.bwd_ms)}, update ${ms(d.update_ms)} ms`]);
    },
    sections(name, d) {
      add(main, "h2", `Lanes and resources: ${name}`);
      table(main, [["lane", r => r[0], "text"], ["busy ms", r => ms(r[1].busy_ms), ""],
        ["of the iteration", r => number(100 * r[1].utilization) + " %", ""],
        ["GB", r => r[1].bytes ? number(r[1].bytes / 1e9, 1) : "", ""]], Object.entries(d.lanes));
      const busy = Object.entries(d.resources).sort((a, b) => b[1].utilization - a[1].utilization).slice(0, 6);
      add(main, "p", "Busiest resources: " + busy.map(([key, r]) => `${key} ${number(100 * r.utilization)} %`).join(", ") + ".");
      sharedSections(name, d, d.uncertainty);
    },
  },
};

/* Prediction against measurement: {name: {predicted_ms, measured_ms, error_pct}}. */
function pairsTable(parent, heading, pairs) {
  table(parent, [[heading, r => r[0], "text"], ["predicted ms", r => number(r[1].predicted_ms, 2), ""],
    ["measured ms", r => number(r[1].measured_ms, 2), ""],
    ["error %", r => r[1].error_pct == null ? "" : number(r[1].error_pct, 1), ""]], Object.entries(pairs));
}

/* Measured less predicted time by cause, which sums up to that of the whole. */
function attributionFigure(parent, attribution) {
  const causes = Object.entries(attribution).filter(([key, x]) => key.endsWith("_ms") && key !== "sum_ms" && isFinite(x));
  plot(parent, "attribution-" + plots.length, [{ type: "bar", orientation: "h", y: causes.map(c => c[0].slice(0, -3)),
    x: causes.map(c => c[1]), marker: { color: causes.map(c => c[1] > 0 ? C.red : C.blue) },
    hovertemplate: "%{y}: %{x:.3f} ms<extra></extra>" }],
  { xaxis: Object.assign({}, grid, { title: { text: "measured less predicted, ms" }, zeroline: true }),
    yaxis: Object.assign({}, grid, { autorange: "reversed", automargin: true }), margin: { l: 20, r: 12, t: 30, b: 44 } },
  90 + 28 * causes.length);
}

/* points: {x: measured, y: predicted, text, group}, on logarithmic axes if they span decades. */
function scatterOfErrors(parent, points, unit) {
  const all = points.flatMap(p => [p.x, p.y]).filter(v => v > 0), low = Math.min(...all), high = Math.max(...all);
  const type = high > 20 * low ? "log" : "linear", groups = [...new Set(points.map(p => p.group))];
  const traces = groups.map((group, i) => {
    const own = points.filter(p => p.group === group);
    return { type: "scatter", mode: "markers", name: plain(group), x: own.map(p => p.x), y: own.map(p => p.y),
      marker: { color: SERIES[i % 8], symbol: SYMBOLS[i % 8], size: 8, line: { width: 1, color: "#fff" } },
      customdata: own.map(p => [plain(p.text), number(100 * (p.y / p.x - 1), 1)]),
      hovertemplate: `%{customdata[0]}<br>measured %{x:,.1f}, predicted %{y:,.1f} ${unit}, error %{customdata[1]} %<extra></extra>` };
  });
  traces.push({ type: "scatter", mode: "lines", name: "no error", x: [low, high], y: [low, high], hoverinfo: "skip",
    line: { color: C.black, width: 1, dash: "dot" } });
  plot(parent, "errors-" + plots.length, traces, {
    xaxis: Object.assign({}, grid, { type, title: { text: "measured, " + unit } }),
    yaxis: Object.assign({}, grid, { type, title: { text: "predicted, " + unit } }),
    margin: { l: 62, r: 12, t: phone() ? 120 : 80, b: 48 } }, 460);
}

function validationAnswer(parent, d, whole, what, lines) {
  answer(parent, `${d.model}: ${what}`, d.passed !== false,
    `predicted ${number(whole.predicted_ms, 1)} ms, measured ${number(whole.measured_ms, 1)} ms, ` +
    `error ${number(whole.error_pct, 1)} %`, [d.plan, d.summary, ...lines]);
}

function validationSections(name, d) {
  add(main, "h2", `Errors by cause: ${name}`);
  attributionFigure(main, d.attribution);
  add(main, "h2", `Phases and lanes: ${name}`);
  pairsTable(main, "phase", d.phases);
  pairsTable(main, "lane, busy", Object.fromEntries(Object.entries(d.lanes).map(([lane, l]) => [lane, l.busy])));
  add(main, "h2", `Operations: ${name}`);
  table(main, [["operation", r => r[0], "text"], ["count", r => number(r[1].count), ""],
    ["predicted ms", r => number(r[1].predicted_ms, 2), ""], ["measured ms", r => number(r[1].measured_ms, 2), ""],
    ["median |error| %", r => number(r[1].median_abs_error_pct, 1), ""],
    ["worst", r => number(r[1].worst_abs_error_pct, 1), "minor"]], Object.entries(d.operations));
  if (d.differences && d.differences.length) {
    add(main, "h2", `Operations that differ most: ${name}`);
    table(main, [["operation", r => r.operation, "text"], ["lane", r => r.lane, "text minor"],
      ["predicted ms", r => number(r.duration.predicted_ms, 2), ""], ["measured", r => number(r.duration.measured_ms, 2), ""],
      ["wait, predicted", r => number(r.wait.predicted_ms, 2), "minor"], ["measured", r => number(r.wait.measured_ms, 2), "minor"],
      ["cause", r => r.cause, "text"]], d.differences);
  }
  if (d.explain) sharedSections(name, d, null);
}

Object.assign(PAGES, {
  "hocket.engine_validation/1": {
    answer(parent, d) {
      validationAnswer(parent, d, d.makespan, `the update, run on backend ${d.backend}`,
        [`profile ${d.profile.name}, ${d.steps} steps; timelines ${d.timelines.predicted} and ${d.timelines.measured}`]);
    },
    sections: validationSections,
  },
  "hocket.training_validation/1": {
    answer(parent, d) {
      const i = d.iteration;
      validationAnswer(parent, d, i, `a recorded iteration on ${d.machine}`,
        [`overlap ${d.overlap}; step ${i.step}, the median of ${i.recorded} recorded iterations (${ms(i.min_ms)} to ${ms(i.max_ms)} ms)`]);
    },
    sections: validationSections,
  },
  "hocket.plan_comparison/1": {
    answer(parent, d) {
      const first = d.machines[0];
      answer(parent, `${d.model} on ${d.machines.length} machines`, first.fits, !first.fits ? "fits on none"
        : `${first.machine}: ${number(first.best.tokens_per_s)} tokens/s`, [`Order: ${d.order.replace(/_/g, " ")}`, d.note]);
    },
    sections(name, d) {
      add(main, "h2", `Machines: ${name}`);
      table(main, [["machine", m => m.machine, "text"], ["GPUs", m => m.gpus, ""],
        ["tokens/s", m => m.fits ? number(m.best.tokens_per_s) : "", ""], ["iteration ms", m => m.fits ? ms(m.best.iteration_ms) : "", ""],
        ["schedule", m => m.fits ? titleOf(m.best) : "does not fit: " + m.best.problem, "text long"]], d.machines, m => m.fits ? "" : "no");
      const fit = d.machines.filter(m => m.fits);
      if (fit.length > 1) paretoFigure(main, "pareto-" + plots.length, fit.map(m => ({ x: m.best.gpu_memory.peak_bytes / GiB,
        y: m.best.iteration_ms, text: `${m.machine}: ${titleOf(m.best)}`, group: m.machine })), "GPU memory, GiB", "iteration, ms");
    },
  },
  "hocket.run_comparison/1": {
    answer(parent, d) {
      const m = d.median_abs_error_pct;
      answer(parent, `${d.rows.length} measured training runs`, true,
        `median error of the iteration ${number(m.iter_ms, 1)} %, of the update ${number(m.step_ms, 1)} %`,
        [`forward ${number(m.fwd_ms, 1)} %, backward ${number(m.bwd_ms, 1)} %; Kendall's tau of the settings ${number(d.kendall_tau, 2)}` +
          ` over ${d.pairs} pairs; machine ${d.machines.join(", ")}`]);
    },
    sections(name, d) {
      const columns = [["forward", "fwd_ms"], ["backward", "bwd_ms"], ["update", "step_ms"], ["iteration", "iter_ms"]];
      const label = r => `${r.source}, ${r.model} dp${r.dp} tp${r.tp}, line ${r.line}`;
      add(main, "h2", `Predicted against measured: ${name}`);
      scatterOfErrors(main, columns.flatMap(([group, key]) => d.rows.filter(r => r[key] && r[key].measured > 0 && r[key].predicted > 0)
        .map(r => ({ x: r[key].measured, y: r[key].predicted, text: label(r), group }))), "ms");
      add(main, "h2", `Rows: ${name}`);
      table(main, [["row", label, "text long"], ...columns.map(([group, key]) =>
        [`${group} %`, r => r[key] ? number(r[key].error_pct, 1) : "", key === "iter_ms" || key === "step_ms" ? "" : "minor"]),
      ["iteration ms", r => r.iter_ms ? ms(r.iter_ms.measured) : "", ""]], d.rows);
    },
  },
  "hocket.ranking/1": {
    answer(parent, d) {
      answer(parent, `${d.model}: ${d.plans.length} plans, run`, d.complete !== false,
        d.kendall_tau == null ? `${d.plans.length} plans` : `Kendall's tau of the order ${number(d.kendall_tau, 2)}`, []);
    },
    sections(name, d) {
      add(main, "h2", `Predicted against measured: ${name}`);
      scatterOfErrors(main, d.plans.map(p => ({ x: p.measured_ms, y: p.predicted_ms, text: p.plan, group: p.plan.split(" ")[0] })), "ms");
      add(main, "h2", `Plans: ${name}`);
      table(main, [["plan", p => p.plan, "text"], ["predicted ms", p => number(p.predicted_ms, 1), ""],
        ["measured ms", p => number(p.measured_ms, 1), ""],
        ["error %", p => number(100 * (p.predicted_ms / p.measured_ms - 1), 1), ""]],
      d.plans.slice().sort((a, b) => a.measured_ms - b.measured_ms));
    },
  },
  "hocket.spans/1": {
    answer(parent, d, input) {
      answer(parent, `${d.plan.model && d.plan.model.name || input.name}: a recorded training run`, true,
        `${number(input.steps)} steps`, d.spans.length ? ["The last two are below."] : []);
    },
    sections() {},
  },
  "hocket.sweep/1": {
    answer(parent, d) {
      const rows = rowsOf(d);
      const lines = [`${number(d.fit)} of ${number(d.rows)} rows fit; ${number(d.do_not_fit)} do not, ` +
        `${number(d.not_possible)} are not possible` + (d.rows < d.points ? `; ${number(d.points - d.rows)} are still to be simulated` : "")];
      for (const row of bestRows(rows).slice(0, 8))
        lines.push(`${d.priced ? "Cheapest" : "Fewest GPU seconds"} of ${row.model}: ${pointOf(d, row)}: ${row.schedule}, ` +
          `${number(row.tokens_per_s)} tokens/s` + (d.priced ? `, ${number(row.cost_per_mtok, 4)} for a million tokens` : ""));
      const first = bestRows(rows)[0];
      answer(parent, `Sweep over ${d.axes.join(", ") || "one point"}`, rows.length > 0, !first ? "no row fits"
        : d.priced ? `${number(first.cost_per_mtok, 4)} for a million tokens` : `${number(measureOf(first), 1)} GPU seconds for a million tokens`, lines);
    },
    sections(name, d) {
      const rows = rowsOf(d);
      if (rows.length === 0) return;
      if (rows.length < d.fit) add(main, "p", `The page has the ${number(rows.length)} best of ${number(d.fit)} rows that fit.`, "note");
      add(main, "h2", `Speed against memory: ${name}`);
      sweepFigure(main, rows, d, "pareto_memory", r => r.gpu_bytes / GiB, "GPU memory, GiB");
      if (d.priced) {
        add(main, "h2", `Speed against cost: ${name}`);
        sweepFigure(main, rows, d, "pareto_money", r => r.cost_per_mtok, "cost of a million tokens");
      }
      add(main, "h2", `Rows: ${name}`);
      add(main, "p", "★: no row of the same model and tokens an iteration is faster with at most the same memory (M) or cost (C).", "note");
      table(main, [[d.priced ? "cost/Mtok" : "GPU s/Mtok", r => number(measureOf(r), 4), ""], ["tokens/s", r => number(r.tokens_per_s), ""],
        ["iteration ms", r => ms(r.iteration_ms), "minor"], ["GPU GiB", r => gib(r.gpu_bytes), ""],
        ["★", r => (r.pareto_memory ? "M" : "") + (r.pareto_money ? "C" : ""), "text"],
        ...d.axes.map(a => [a, r => r[a] == null ? "default" : r[a], "text"]), ["schedule", r => r.schedule, "text minor"]],
      rows.slice().sort((a, b) => measureOf(a) - measureOf(b)).slice(0, 60));
    },
  },
});

/* -- Rows of a sweep ------------------------------------------------------------------------ */

function rowsOf(d) {
  const names = Object.keys(d.columns), n = d.columns.id.length;
  return Array.from({ length: n }, (_, i) => Object.fromEntries(names.map(name => [name, d.columns[name][i]])));
}

const measureOf = r => r.cost_per_mtok != null ? r.cost_per_mtok : 1e6 * r.world / r.tokens_per_s;
const pointOf = (d, row) => d.axes.filter(a => a !== "model").map(a => `${a} ${row[a] == null ? "default" : row[a]}`).join(", ");

/* The best row of each model. */
function bestRows(rows) {
  const best = new Map();
  for (const r of rows) if (!best.has(r.model) || measureOf(r) < measureOf(best.get(r.model))) best.set(r.model, r);
  return [...best.values()].sort((a, b) => measureOf(a) - measureOf(b));
}

/* Best compromises are full marks, other rows small and pale. */
function sweepFigure(parent, rows, d, flag, xOf, xTitle) {
  const models = [...new Set(rows.map(r => r.model))], traces = [];
  models.forEach((model, i) => [false, true].forEach(best => {
    const own = rows.filter(r => r.model === model && Boolean(r[flag]) === best);
    if (own.length) traces.push({ type: "scatter", mode: "markers", name: plain(model || "") + (best ? ", best compromises" : ""), x: own.map(xOf),
      y: own.map(r => r.tokens_per_s), opacity: best ? 1 : 0.35,
      marker: { color: SERIES[i % 8], symbol: SYMBOLS[i % 8], size: best ? 11 : 6, line: { width: best ? 1 : 0, color: C.black } },
      customdata: own.map(r => [plain(pointOf(d, r)), plain(r.schedule), number(r.iteration_ms, 1)]),
      hovertemplate: "%{customdata[0]}<br>%{customdata[1]}: %{customdata[2]} ms an iteration<br>%{x:,.4~g}, %{y:,.0f} tokens/s<extra></extra>" });
  }));
  plot(parent, flag + "-" + plots.length, traces, { xaxis: Object.assign({}, grid, { title: { text: xTitle } }),
    yaxis: Object.assign({}, grid, { title: { text: "tokens/s" }, rangemode: "tozero" }),
    margin: { l: 62, r: 12, t: phone() ? 130 : 90, b: 48 } }, phone() ? 440 : 480);
}
