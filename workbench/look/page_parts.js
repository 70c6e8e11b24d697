// What every script of a page is made with: elements, text, curves, tables. All text is foreign: it is only ever set as
// textContent.

const RUN_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]; // Okabe and Ito

// A colour as it reads on light and on dark paper: with some of the ink around it.
const inked = (colour) => (colour.startsWith("#") ? `color-mix(in srgb, ${colour} 80%, currentColor)` : colour);

function make(name, props = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(node.style, value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Children that are null are left out.
function fill(node, ...children) {
  node.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

function said(value, digits = 3) {
  if (!known(value)) return "—";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value).replace("-", "−");
  return value.toPrecision(digits).replace("-", "−");
}

const signed = (value) => (known(value) && value > 0 ? "+" : "") + said(value);

// How values that stand below each other are written: all with three decimals, or more where the largest of them needs more
// for `digits` digits, and with no more than one of them needs. A function from one of them to its words.
function inColumn(values, { sign = false, digits = 3 } = {}) {
  const sizes = values.filter((value) => typeof value === "number" && Number.isFinite(value)).map(Math.abs);
  const largest = Math.max(0, ...sizes);
  const most = largest > 0 ? Math.max(largest < 100 ? 3 : 1, digits - 1 - Math.floor(Math.log10(largest))) : 0;
  if (most > Math.max(6, digits)) return sign ? signed : said; // so small that decimals would be zeros
  let decimals = 0;
  while (decimals < most && sizes.some((size) => Math.abs(size - Number(size.toFixed(decimals))) > 1e-9 * largest)) decimals += 1;
  return (value) => {
    if (typeof value !== "number" || !Number.isFinite(value)) return said(value);
    return `${value < 0 ? "−" : sign && value > 0 ? "+" : ""}${Math.abs(value).toFixed(decimals)}`;
  };
}

// About `count` round values that reach from below `low` to above `high`: 1, 2, 2.5 or 5 times a power of ten apart.
function ticks(low, high, count, whole = false) {
  const step = tickStep(low, high, count, whole ? { fits: Number.isInteger } : {}) ?? 1;
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

// The same on a logarithmic scale, inside of the range: powers of ten, or what lies between them where these are too few.
function logTicks(low, high) {
  const inside = (factors) => {
    const values = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) values.push(...factors.map((factor) => Number((factor * 10 ** power).toPrecision(12))));
    return values.filter((value) => value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9));
  };
  return [[1], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]].map(inside).find((values) => values.length > 1)
    ?? ticks(low, high, 3).filter((value) => value >= low && value <= high);
}

function lineOf(points) {
  let path = "", pen = "M";
  for (const point of points) { if (point === null) pen = "M"; else { path += pen + point; pen = "L"; } }
  return path || "M0,0";
}

function row(cells, label, chosen, key) {
  const node = make("tr", { tabindex: 0, "aria-label": label, "data-key": key, onclick: chosen,
    onkeydown: (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); chosen(); }
      const other = { ArrowDown: node.nextElementSibling, ArrowUp: node.previousElementSibling }[event.key];
      if (other) { event.preventDefault(); other.focus(); }
    } }, ...cells.map(([text, number, kind]) => make("td", { text, class: number ? "wb-number" : kind, title: kind ? text : null })));
  return node;
}

// The heading of a column of numbers stands above them, on the right.
function table(heads, rows) {
  const kind = (index) => (rows[0]?.children[index]?.classList.contains("wb-number") ? "wb-number" : null);
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((head, index) => make("th", { scope: "col", class: kind(index) }, head)))), make("tbody", {}, ...rows));
}
