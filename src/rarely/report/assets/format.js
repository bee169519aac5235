// Elements and numbers. Text enters the page as text nodes alone, never as HTML, whatever a file or class is called.
const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
};
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const byId = (id) => document.getElementById(id);

const data = JSON.parse(byId("data").textContent);
const rows = data.rows.map((values) => Object.fromEntries(data.fields.map((name, i) => [name, values[i]])));
rows.forEach((row, rank) => { row.rank = rank; });

const known = (value) => value !== null && value !== undefined;
const whole = (value) => known(value) ? value.toLocaleString("en") : "";
const short = (value, digits = 4) => known(value) ? String(Number(value.toPrecision(digits))) : "–";
const calls = (row) => known(row.evaluations) ? row.evaluations + 3 * row.gradients : null;

// A probability given by its natural log, as `scientific` of rarely.questions.result writes it; null is log 0.
const scientific = (given) => {
  if (!known(given)) return "0";
  const log = given + 1e-9;  // what is in the middle of two texts becomes the same one there and here
  const tens = log / Math.LN10;
  let exponent = Math.floor(tens);
  let mantissa = Math.round(100 * 10 ** (tens - exponent)) / 100;
  if (mantissa >= 10) [mantissa, exponent] = [1, exponent + 1];
  if (exponent >= -2) return String(Number(Math.min(1, Math.exp(log)).toPrecision(3)));
  return `${mantissa.toFixed(2)}e-${String(-exponent).padStart(2, "0")}`;
};
const chance = (row) => {
  if (known(row.log_prob)) return scientific(row.log_prob);
  if (row.standing === "proved safe") return "0";
  return known(row.upper) ? `≤ ${scientific(row.upper)}` : "";
};
const interval = (row) => {
  if (known(row.log_prob)) return `${scientific(row.low)} to ${scientific(row.high)}`;
  if (row.standing === "proved safe") return "proof";
  return known(row.upper) ? `${percent(row.confidence)} bound` : "";
};
const percent = (share) => `${Number((100 * share).toPrecision(4))}%`;
const standingMark = (name) => el("span", { class: `dot is-${name.replaceAll(" ", "-")}`, "aria-hidden": "true" });
