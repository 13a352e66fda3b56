// Figures as a person reads them; "–" is unknown, never 0.

export function count(value) {
  return value === null || value === undefined ? "–" : typeof value === "number" ? value.toLocaleString("en-US") : String(value);
}

export function short(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Number(value.toPrecision(3)));
}

export function span(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  const size = Math.abs(milliseconds);
  if (size < 1) return `${Number(milliseconds.toPrecision(2))} ms`;
  if (size < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (size < 600000) return `${Number(seconds.toFixed(size < 10000 ? 2 : 1))} s`;
  return size < 7200000 ? `${Math.round(seconds / 60)} min` : `${Number((seconds / 3600).toFixed(1))} h`;
}

export function moment(seconds) {
  if (typeof seconds !== "number") return "–";
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? String(seconds) : date.toISOString().slice(0, 19).replace("T", " ");
}

/** Only as much of a moment as tells bins of this length apart. */
export function clock(seconds, step) {
  const text = moment(seconds);
  return step >= 86400 ? text.slice(0, 10) : step >= 60 ? text.slice(11, 16) : text.slice(11);
}

export function bytes(value) {
  return value === null || value === undefined ? "–" : `${short(value)}B`.replace(/([a-zA-Z]+)$/, " $1");
}

export function gapName(code) {
  return code.replace(/^model_call_capture_/, "").replaceAll("_", " ");
}

export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
