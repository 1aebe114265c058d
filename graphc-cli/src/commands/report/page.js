// The page: the data's parts in their places, for the target that is chosen.

const DATA = JSON.parse(byId("data").textContent);

/** The figures that `inspect` has for each target, in its words, and how people read them. */
const FIGURES = [
  ["launches", "launches", String],
  ["library_calls", "library calls", String],
  ["flops", "operations a run", (n) => metric(n, "FLOP")],
  ["weight_bytes", "weights", bytes],
  ["planned_peak_bytes", "planned peak", bytes],
  ["live_peak_bytes", "most alive at once", bytes],
];

function card(value, name, attributes) {
  return html("div", { class: "card" }, [html("b", attributes, value), html("span", {}, name)]);
}

/** A table: columns are [title, is text], rows are lists of cells or of [cell, attributes]. */
function table(id, columns, rows) {
  const cell = (content, at) => {
    const [value, attributes] = Array.isArray(content) ? content : [content, {}];
    const given = attributes.class ? attributes.class + " " : "";
    return html("td", { ...attributes, class: given + (columns[at][1] ? "text" : "") }, value);
  };
  fill(id, [
    html("thead", {}, html("tr", {}, columns.map(([title, text]) => html("th", { class: text ? "text" : null }, title)))),
    html("tbody", {}, rows.map((row) => html("tr", row.attributes || {}, (row.cells || row).map(cell)))),
  ]);
}

const swatch = (name) => html("span", { class: "swatch", style: `background: ${paint(name)}; border: 1px solid ${outline(name)}` });
const named = (name) => html("span", {}, [swatch(name), name]);

function timelineNote(timeline) {
  if (!timeline) return "No times: write the page with --emulate to predict them, or with --device to measure them.";
  if (timeline.source === "predicted") return `Predicted by the timing model of the emulated ${timeline.device}: ${micros(timeline.total_us)} for one run.`;
  const { run, runs, steps_us } = timeline.profile;
  return `Measured on ${timeline.device}, the middle one of ${runs} runs: ${micros(run.device_us)}, of which ${micros(run.idle_us)} idle in ` +
    `${run.gaps.length} gaps; copies and the rest at once for ${micros(run.overlap_us)}. Steps by their medians: ${micros(steps_us)}.`;
}

function showFigures(variant) {
  const { facts, timeline } = variant;
  const cards = FIGURES.map(([key, name, show]) => card(show(facts[key]), name, { "data-figure": key, "data-value": facts[key] }));
  cards.push(card(String(facts.kernels.length), "kernels", { "data-figure": "kernels", "data-value": facts.kernels.length }));
  if (timeline) cards.unshift(card(micros(timeline.total_us), timeline.source, { "data-figure": "total_us", "data-value": timeline.total_us }));
  fill("figures", cards);
}

function showCharts(variant) {
  const { timeline, facts, peaks } = variant;
  byId("timeline-note").textContent = timelineNote(timeline);
  fill("timeline", timeline ? drawTimeline(variant) : []);
  byId("roofline-note").textContent = `${peaks.product}, peaks of the data sheet. ` +
    (timeline ? "Filled marks are steps with their times." : "Marks are hollow: without times each step stands where the roof is.");
  fill("roofline", drawRoofline(variant));
  byId("memory-note").textContent = `The arena of one run at the sizes' hints; weights (${bytes(facts.weight_bytes)}) lie beside it. ` +
    "A dashed buffer is in the place of another.";
  fill("memory", variant.buffers.length > 0 ? drawMemory(variant) : html("p", { class: "empty" }, "no buffer is in an arena"));
}

function showNode(variant, node) {
  const { explain } = variant;
  const regions = explain ? explain.regions.filter((region) => node.regions.includes(region.id)) : [];
  const edges = explain ? explain.unfused.filter((edge) => edge.value === node.label) : [];
  const entries = [["type", node.types.join(", ")]];
  if (node.constants.length > 0) entries.push(["constant operands", node.constants.join(", ")]);
  for (const region of regions) entries.push([`${region.kind} ${region.id}`, region.nodes.join(" · ")]);
  for (const edge of edges) entries.push([`stored for ${edge.consumer}`, `${edge.why}. ${edge.advice}`]);
  const rows = entries.flatMap(([name, text]) => [html("dt", {}, name), html("dd", {}, text)]);
  byId("node").hidden = false;
  fill("node", [html("code", {}, node.label), html("dl", {}, rows)]);
}

function showGraphs(variant) {
  const has = DATA.before !== null && variant.after !== null;
  byId("graph-note").textContent = has
    ? "Boxes of one colour run as one kernel. Thick edges go through memory; point at one to see why. Constants are left out."
    : "An artifact no longer holds its graph: make the page from the model.";
  byId("node").hidden = true;
  for (const id of ["before", "after"]) {
    const into = byId(id);
    into.closest("figure").hidden = !has;
    if (!has) continue;
    const graph = id === "before" ? DATA.before : variant.after;
    byId(id + "-count").textContent = `(${graph.nodes.length} nodes)`;
    const reasons = new Map();
    if (id === "after") for (const edge of variant.explain.unfused) reasons.set(edge.value + " " + edge.consumer, edge.why);
    const through = (from, to) => {
      for (const region of to.regions) {
        const why = reasons.get(from.label + " " + region);
        if (why !== undefined) return why;
      }
      return null;
    };
    const drawn = drawGraph(into, graph, through, (node) => showNode(variant, node));
    if (drawn) zoomable(document.querySelector(`.zoom[data-of="${id}"]`), into, drawn);
  }
}

/** How often each key occurs, most often first. */
function counted(list, key) {
  const counts = new Map();
  for (const item of list) counts.set(key(item), [...(counts.get(key(item)) || []), item]);
  return [...counts].sort((a, b) => b[1].length - a[1].length);
}

function showFusion(variant) {
  const { explain } = variant;
  if (!explain) { fill("fusion", html("p", { class: "empty" }, "An artifact no longer says what was decided.")); return; }
  const done = counted(explain.fused, (edge) => edge.how);
  const most = Math.max(1, ...done.map(([, edges]) => edges.length));
  const bars = done.map(([how, edges]) => html("tr", {}, [
    html("td", { class: "text" }, how.replaceAll("_", " ")),
    html("td", { "data-figure": "fused/" + how, "data-value": edges.length }, String(edges.length)),
    html("td", { style: "width: 55%" }, html("div", { class: "bar", style: `width: ${100 * edges.length / most}%` })),
  ]));
  const rules = counted(explain.rules, (rule) => rule.rule + "\u0000" + rule.pass).map(([key, list]) => html("tr", {}, [
    html("td", { class: "text" }, key.split("\u0000")[0]),
    html("td", { class: "text" }, html("span", { style: "color: var(--soft)" }, key.split("\u0000")[1])),
    html("td", {}, String(list.length)),
  ]));
  const reasons = counted(explain.unfused, (edge) => edge.why).map(([why, edges]) => html("div", { class: "reason" }, [
    html("b", {}, `${edges.length} × ${why}`),
    html("span", { class: "advice" }, edges[0].advice),
    html("details", {}, [
      html("summary", {}, "which"),
      html("ul", {}, edges.map((edge) => html("li", {}, `${edge.value}: ${edge.producer} to ${edge.consumer}`))),
    ]),
  ]));
  fill("fusion", [
    html("div", {}, [
      html("h3", {}, `Kept inside kernels: ${explain.fused.length} edges`),
      html("table", {}, html("tbody", {}, bars)),
      html("h3", {}, `Rewrites: ${explain.rules.length}`),
      html("div", { style: "max-height: 300px; overflow: auto" }, html("table", {}, html("tbody", {}, rules))),
    ]),
    html("div", {}, [html("h3", {}, `Through memory: ${explain.unfused.length} edges`), ...reasons]),
  ]);
}

function showSteps(variant) {
  const { steps, timeline } = variant;
  const times = new Map((timeline ? timeline.intervals : []).map((interval) => [interval.step, interval.us]));
  const total = [...times.values()].reduce((sum, us) => sum + us, 0);
  const columns = [["step"], ["name", true], ["lane", true], ["read"], ["written"], ["operations"], ["FLOP/B"], ["roofline"], ["bound by", true]];
  if (timeline) columns.push([timeline.source], ["of all"], ["of roofline"]);
  table("steps", columns, steps.map((step, at) => {
    const moved = step.read_bytes + step.written_bytes;
    const us = times.get(at);
    const cells = [
      String(at), [named(step.name), {}], step.lane, bytes(step.read_bytes), bytes(step.written_bytes),
      step.flops > 0 ? metric(step.flops, "") : "–", moved > 0 && step.flops > 0 ? digits(step.flops / moved) : "–",
      step.roofline ? micros(step.roofline.micros) : "–", step.over_bus ? "bus" : step.roofline ? step.roofline.bound : "–",
    ];
    if (timeline) {
      cells.push(us === undefined ? "–" : micros(us), total > 0 && us !== undefined ? percent(us / total) : "–",
        us > 0 && step.roofline ? percent(step.roofline.micros / us) : "–");
    }
    return cells;
  }));
}

function showKernels(variant) {
  const { facts } = variant;
  const number = (value) => (value === null ? "–" : String(value));
  const predicted = new Map();
  for (const kernel of facts.timed || []) predicted.set(kernel.name, (predicted.get(kernel.name) || 0) + kernel.total_micros);
  const columns = [["kernel", true], ["launches"], ["VGPR"], ["AGPR"], ["SGPR"], ["LDS"], ["scratch"], ["spills"]];
  if (predicted.size > 0) columns.push(["predicted"]);
  columns.push(["nodes", true]);
  const source = byId("source");
  source.hidden = true;
  table("kernels", columns, facts.kernels.map((kernel) => {
    const spills = kernel.vgpr_spills === null || kernel.sgpr_spills === null ? null : kernel.vgpr_spills + kernel.sgpr_spills;
    const cells = [
      [named(kernel.name), {}], [String(kernel.launches), { "data-figure": "kernel/" + kernel.name, "data-value": kernel.launches }],
      number(kernel.vgpr), number(kernel.agpr), number(kernel.sgpr), number(kernel.lds_bytes), number(kernel.scratch_bytes), number(spills),
    ];
    if (predicted.size > 0) cells.push(predicted.has(kernel.name) ? micros(predicted.get(kernel.name)) : "–");
    cells.push([kernel.nodes.join(" · "), { class: "wrap" }]);
    const show = () => {
      source.hidden = false;
      source.open = true;
      source.querySelector("summary").textContent = `${kernel.name}: its source`;
      source.querySelector("pre").textContent = kernel.source;
      source.scrollIntoView({ block: "nearest" });
    };
    const classes = (kernel.source ? "click" : "") + (kernel.launches === 0 ? " unused" : "");
    const title = (kernel.launches === 0 ? "taken at other sizes; " : "") + "its source";
    return { cells, attributes: kernel.source ? { class: classes, title, on: { click: show } } : { class: classes } };
  }));
}

function showTargets() {
  const all = DATA.variants;
  const most = (variant, key) => Math.max(0, ...variant.facts.kernels.map((kernel) => kernel[key] || 0));
  const sum = (variant, key) => variant.facts.kernels.reduce((total, kernel) => total + (kernel[key] || 0), 0);
  const roofline = (variant) => variant.steps.reduce((total, step) => total + (step.roofline ? step.roofline.micros : 0), 0);
  const time = (variant) => (variant.timeline ? `${micros(variant.timeline.total_us)} ${variant.timeline.source}` : "–");
  const rows = [
    ["product", (variant) => variant.peaks.product],
    ["time of a run", time],
    ["roofline of all steps", (variant) => micros(roofline(variant))],
    ...FIGURES.map(([key, name, show]) => [name, (variant) => [show(variant.facts[key]), {
      "data-figure": variant.facts.target + "/" + key, "data-value": variant.facts[key],
    }]]),
    ["kernels", (variant) => String(variant.facts.kernels.length)],
    ["most VGPRs", (variant) => String(most(variant, "vgpr") || "–")],
    ["most LDS", (variant) => bytes(most(variant, "lds_bytes"))],
    ["spilled registers", (variant) => String(sum(variant, "vgpr_spills") + sum(variant, "sgpr_spills"))],
    ["edges kept in kernels", (variant) => (variant.explain ? String(variant.explain.fused.length) : "–")],
    ["edges through memory", (variant) => (variant.explain ? String(variant.explain.unfused.length) : "–")],
  ];
  table("by-target", [["", true], ...all.map((variant) => [variant.facts.target])],
    rows.map(([name, of]) => [name, ...all.map(of)]));
}

function choose(at) {
  const variant = DATA.variants[at];
  [...byId("targets").children].forEach((button, index) => button.setAttribute("aria-selected", String(index === at)));
  showFigures(variant);
  showCharts(variant);
  showGraphs(variant);
  showFusion(variant);
  showSteps(variant);
  showKernels(variant);
}

function theme(name) {
  document.documentElement.dataset.theme = name;
}

function start() {
  const dark = location.hash === "#dark" || (location.hash !== "#light" && matchMedia("(prefers-color-scheme: dark)").matches);
  theme(dark ? "dark" : "light");
  byId("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  const { contents } = DATA;
  byId("name").textContent = contents.name;
  const port = (p) => `${p.name}: ${p.dtype}[${p.shape.join(", ")}]`;
  byId("subtitle").textContent = `${contents.inputs.map(port).join(", ")} → ${contents.outputs.map(port).join(", ")}`;
  fill("targets", DATA.variants.map((variant, at) => html("button", {
    type: "button", role: "tab", on: { click: () => choose(at) },
  }, variant.facts.target)));
  byId("targets").hidden = DATA.variants.length < 2;
  const sizes = contents.sizes.map((size) => `${size.name} = ${size.hint}`).join(", ");
  byId("foot").textContent = `Made by graphc ${DATA.graphc}${sizes ? "; figures at " + sizes : ""}.`;
  showTargets();
  choose(0);
}

start();
document.body.dataset.ready = "yes";
