// Timeline, memory and roofline of one target.

const LANES = ["upload", "compute", "download"];

/** Lanes as rows, steps as bars. */
function drawTimeline(variant) {
  const { timeline, steps } = variant;
  const lanes = LANES.filter((lane) => steps.some((step) => step.lane === lane));
  const [width, left, row] = [1400, 84, 46];
  const height = lanes.length * row + 34;
  const total = Math.max(timeline.total_us, 1e-9);
  const x = (us) => left + (width - left - 12) * us / total;
  const parts = [];
  for (const tick of ticks(total, 10)) {
    parts.push(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - 24 }));
    parts.push(svg("text", { class: "soft", x: x(tick), y: height - 8, "text-anchor": "middle" }, micros(tick)));
  }
  lanes.forEach((lane, at) => {
    parts.push(svg("text", { class: "soft", x: left - 12, y: at * row + row / 2 + 4, "text-anchor": "end" }, lane));
    parts.push(svg("line", { class: "axis", x1: left, x2: width - 12, y1: (at + 1) * row, y2: (at + 1) * row }));
  });
  for (const interval of timeline.intervals) {
    const step = steps[interval.step];
    const [start, wide] = [x(interval.start_us), Math.max(1, x(interval.us) - left)];
    const y = lanes.indexOf(step.lane) * row + 7;
    const label = cut(step.name, wide - 8);
    parts.push(svg("g", {}, [
      svg("rect", {
        class: "mark", x: start, y, width: wide, height: row - 14, rx: Math.min(4, wide / 2), "data-step": interval.step,
        style: `fill: ${paint(step.name)}; stroke: ${outline(step.name)}`,
      }, tip(`step ${interval.step}: ${step.name}\n${micros(interval.us)} from ${micros(interval.start_us)}`)),
      label ? svg("text", { x: start + 5, y: y + 20, "pointer-events": "none" }, label) : null,
    ]));
  }
  return svg("svg", { viewBox: `0 0 ${width} ${height}` }, parts);
}

/** Buffers of the arena: across, the steps in which they live; up, where they lie. */
function drawMemory(variant) {
  const { buffers, steps, facts } = variant;
  const [width, height, left, foot] = [700, 400, 70, 34];
  const peak = Math.max(facts.planned_peak_bytes, 1);
  const x = (step) => left + (width - left - 10) * step / Math.max(steps.length, 1);
  const y = (offset) => height - foot - (height - foot - 18) * offset / peak;
  const parts = [];
  for (const tick of byteTicks(peak, 5)) {
    parts.push(svg("line", { class: "grid", x1: left, x2: width - 10, y1: y(tick), y2: y(tick) }));
    parts.push(svg("text", { class: "soft", x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, bytes(tick)));
  }
  for (const tick of ticks(steps.length, 8).filter(Number.isInteger)) {
    parts.push(svg("text", { class: "soft", x: x(tick), y: height - foot + 16, "text-anchor": "middle" }, String(tick)));
  }
  parts.push(svg("text", { class: "soft", x: width - 10, y: height - 2, "text-anchor": "end" }, "step"));
  for (const buffer of buffers) {
    const [start, end] = [x(buffer.first), x(buffer.last + 1)];
    const [top, bottom] = [y(buffer.offset + buffer.bytes), y(buffer.offset)];
    parts.push(svg("rect", {
      class: "mark", x: start + 0.5, y: top, width: Math.max(1, end - start - 1), height: Math.max(1, bottom - top), rx: 2,
      style: `fill: ${paint(buffer.name)}; stroke: ${outline(buffer.name)}`, "stroke-dasharray": buffer.in_place ? "4 3" : null,
    }, tip(`${buffer.name}: ${buffer.ty}\n${bytes(buffer.bytes)} at ${bytes(buffer.offset)}, steps ${buffer.first} to ${buffer.last}`)));
  }
  parts.push(svg("line", { class: "peak", x1: left, x2: width - 10, y1: y(peak), y2: y(peak) }));
  parts.push(svg("text", { x: width - 14, y: y(peak) - 5, "text-anchor": "end" }, `planned peak ${bytes(facts.planned_peak_bytes)}`));
  parts.push(svg("line", { class: "axis", x1: left, x2: width - 10, y1: height - foot, y2: height - foot }));
  return svg("svg", { viewBox: `0 0 ${width} ${height}` }, parts);
}

/** The peak that a step's operations are held against, in 10^12 a second. */
function peakOf(variant, step) {
  const { peaks } = variant;
  return (step.product && peaks.product_tflops[step.product]) || peaks.vector_tflops;
}

/** Steps by operations a byte and operations a second, below what the target's peaks allow. */
function drawRoofline(variant) {
  const { steps, peaks, timeline } = variant;
  const times = new Map((timeline ? timeline.intervals : []).map((interval) => [interval.step, interval.us]));
  const points = [];
  steps.forEach((step, at) => {
    const moved = step.read_bytes + step.written_bytes;
    if (step.roofline === null || moved === 0 || step.flops === 0) return;
    const us = times.get(at);
    points.push({ at, step, intensity: step.flops / moved, rate: step.flops / ((us > 0 ? us : step.roofline.micros) * 1e-6), timed: us > 0 });
  });
  if (points.length === 0) return html("p", { class: "empty" }, "no step computes anything");
  const used = new Map([["vector", peaks.vector_tflops]]);
  for (const { step } of points) if (step.product) used.set(step.product, peakOf(variant, step));
  const top = Math.max(...used.values()) * 1e12;
  const log = Math.log10;
  const range = (values, least) => [Math.floor(log(Math.min(...values)) - 0.15), Math.max(Math.ceil(log(Math.max(...values)) + 0.15), least)];
  const memory = peaks.memory_tbps * 1e12;
  const [x0, x1] = range(points.map((point) => point.intensity), Math.ceil(log(top / memory) + 0.4));
  const [y0, y1] = range([...points.map((point) => point.rate), top], 0);
  const [width, height, left, foot] = [700, 400, 78, 42];
  const x = (v) => left + (width - left - 12) * (log(v) - x0) / (x1 - x0);
  const y = (v) => height - foot - (height - foot - 14) * (log(v) - y0) / (y1 - y0);
  const parts = [];
  for (let power = x0; power <= x1; power += 1) {
    parts.push(svg("line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: 14, y2: height - foot }));
    parts.push(svg("text", { class: "soft", x: x(10 ** power), y: height - foot + 16, "text-anchor": "middle" }, digits(10 ** power)));
  }
  for (let power = y0; power <= y1; power += 1) {
    parts.push(svg("line", { class: "grid", x1: left, x2: width - 12, y1: y(10 ** power), y2: y(10 ** power) }));
    parts.push(svg("text", { class: "soft", x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, metric(10 ** power, "FLOP/s")));
  }
  parts.push(svg("text", { class: "soft", x: width - 12, y: height - 6, "text-anchor": "end" }, "operations a byte"));
  const tallest = top / memory;
  const from = Math.max(10 ** x0, 10 ** y0 / memory);
  parts.push(svg("path", { class: "roof", d: `M${x(from)} ${y(from * memory)} L${x(tallest)} ${y(top)}` }));
  const roofs = [...used].sort((a, b) => b[1] - a[1]).filter(([, tops], at, all) => at === 0 || tops !== all[at - 1][1]);
  for (const [, tops] of roofs) {
    const names = [...used].filter(([, other]) => other === tops).map(([name]) => name).join(", ");
    const roof = y(tops * 1e12);
    parts.push(svg("line", { class: "roof", x1: x(tops * 1e12 / memory), x2: width - 12, y1: roof, y2: roof }));
    parts.push(svg("text", { x: width - 16, y: roof - 5, "text-anchor": "end" }, `${names}: ${metric(tops * 1e12, "FLOP/s")}`));
  }
  const turn = Math.sqrt(from * tallest);
  parts.push(svg("text", { x: x(turn) - 8, y: y(turn * memory) - 6, "text-anchor": "end" }, metric(memory, "B/s")));
  for (const point of points) {
    const { step } = point;
    const spent = point.timed ? micros(times.get(point.at)) : "at the roof, no time known";
    parts.push(svg("circle", {
      class: "mark", cx: x(point.intensity), cy: y(point.rate), r: 5.5, "data-step": point.at,
      style: `fill: ${point.timed ? paint(step.name) : "none"}; stroke: ${outline(step.name)}; stroke-width: 1.6`,
    }, tip(`step ${point.at}: ${step.name}\n${metric(step.flops, "FLOP")}, ${bytes(step.read_bytes + step.written_bytes)}\n${spent}`)));
  }
  return svg("svg", { viewBox: `0 0 ${width} ${height}` }, parts);
}
