// What every script of a page is made with: elements, text, curves, tables. All text is foreign: it is only ever set as
// textContent.

const SVG = "http://www.w3.org/2000/svg";
const RUN_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]; // Okabe and Ito

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

function drawn(name, props, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, String(value));
  if (text !== undefined) node.textContent = text;
  return node;
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

function table(heads, rows) {
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, ...rows));
}
