// Elements, numbers for people, colours.

const NS = "http://www.w3.org/2000/svg";

/** Makes an element of a namespace with attributes and children; text children are text. */
function make(space, name, attributes, children) {
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [event, f] of Object.entries(value)) element.addEventListener(event, f);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...[].concat(children === undefined ? [] : children).filter((child) => child !== null));
  return element;
}
const html = (name, attributes, children) => make(null, name, attributes, children);
const svg = (name, attributes, children) => make(NS, name, attributes, children);
const byId = (id) => document.getElementById(id);

/** Replaces what an element holds. */
function fill(id, children) {
  byId(id).replaceChildren(...[].concat(children));
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
function bytes(n) {
  let unit = 0;
  while (n >= 1024 && unit + 1 < UNITS.length) { n /= 1024; unit += 1; }
  return (unit === 0 ? n.toFixed(0) : n.toFixed(n < 10 ? 2 : 1)) + " " + UNITS[unit];
}

/** A number with a metric prefix. */
function metric(n, unit) {
  const steps = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [size, prefix] of steps) {
    if (Math.abs(n) >= size) return digits(n / size) + " " + prefix + unit;
  }
  return digits(n) + (unit ? " " + unit : "");
}

/** Three significant digits. */
function digits(n) {
  if (n === 0 || Number.isInteger(n) && Math.abs(n) < 1000) return String(n);
  const size = Math.abs(n);
  if (size >= 100) return n.toFixed(0);
  if (size >= 10) return n.toFixed(1);
  if (size >= 1) return n.toFixed(2);
  return n.toPrecision(2);
}

function micros(us) {
  if (us >= 1e6) return digits(us / 1e6) + " s";
  if (us >= 1e3) return digits(us / 1e3) + " ms";
  return digits(us) + " µs";
}

const percent = (share) => (share === null || share === undefined ? "–" : digits(100 * share) + "%");

/** A hue for a name: the same on every page. Numbered names (`r12`) that follow each other are far apart. */
function hue(name) {
  if (/^r[0-9]+$/.test(name)) return Number(name.slice(1)) * 137.508 % 360;
  let hash = 2166136261;
  for (const letter of name) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619) >>> 0;
  return (hash % 360 + Math.floor(hash / 360) % 12 * 3) % 360;
}
const paint = (name) => `hsl(${hue(name)} var(--fill-s) var(--fill-l))`;
const outline = (name) => `hsl(${hue(name)} var(--fill-s) var(--stroke-l))`;

/** About `count` round values from 0 to `most`. */
function ticks(most, count) {
  if (!(most > 0)) return [0];
  const rough = most / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const all = [];
  for (let at = 0; at <= most * 1.0001; at += step) all.push(at);
  return all;
}

/** As much of a text as fits a width in pixels. */
function cut(text, width) {
  const letters = Math.floor(width / 6.4);
  if (text.length <= letters) return text;
  return letters < 4 ? "" : text.slice(0, letters - 1) + "…";
}

/** As `ticks`, but round in units of 1024. */
function byteTicks(most, count) {
  let unit = 1;
  while (unit * 1024 <= most) unit *= 1024;
  return ticks(most / unit, count).map((tick) => tick * unit);
}

const tip = (text) => svg("title", {}, text);
