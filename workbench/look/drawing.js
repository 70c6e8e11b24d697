// What every script that draws a chart begins with. All text is foreign: it is only ever set as textContent.

const SVG = "http://www.w3.org/2000/svg";

function drawn(name, properties, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(properties)) node.setAttribute(key, String(value));
  if (text !== undefined) node.textContent = text;
  return node;
}

// How far about `count` round values between `low` and `high` are apart: one of `factors` times a power of ten that `fits`.
function tickStep(low, high, count, { factors = [1, 2, 2.5, 5, 10], fits = () => true } = {}) {
  const least = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(least));
  return factors.map((factor) => factor * unit).find((size) => size >= least * (1 - 1e-9) && fits(size));
}
