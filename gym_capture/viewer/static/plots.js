// Plots as SVG. The server made bins and ticks; here they only get their places.

import { el, svg } from "./dom.js";
import { clock, count, moment, short, span } from "./format.js";

const WIDTH = 560;
const HEIGHT = 170;
const LEFT = 44;
const BOTTOM = 22;
const TOP = 8;

function frame(title, summary, ...children) {
  return el("figure", { class: "plot" }, el("figcaption", {}, title),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${summary}` }, ...children));
}

function roundedUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= value);
}

function heights(most) {
  const top = roundedUp(most);
  const place = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const lines = [0, 0.5, 1].map((share) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: place(top * share), y2: place(top * share) }),
    svg("text", { class: "tick", x: LEFT - 6, y: place(top * share) + 4, "text-anchor": "end" }, short(top * share)),
  ]);
  return { place, lines };
}

function bar(cls, x, width, y0, y1, told) {
  return svg("rect", { class: cls, x, width: Math.max(width, 1), y: y1, height: Math.max(y0 - y1, 0) }, svg("title", {}, told));
}

/** Bars over time, one stack a bin. `series`: [class, name, value of a bin], from the bottom. */
export function overTime(title, plot, series) {
  const total = (bin) => series.reduce((sum, [, , value]) => sum + value(bin), 0);
  if (!plot.bins.length) return empty(title, "No call says when it ended.");
  const { place, lines } = heights(Math.max(...plot.bins.map(total)));
  const step = (WIDTH - LEFT) / plot.bins.length;
  const bars = plot.bins.flatMap((bin, index) => {
    let below = 0;
    const told = `${moment(plot.start + index * plot.step_s)}: ${series.map(([, name, value]) => `${count(value(bin))} ${name}`).join(", ")}`;
    return series.map(([cls, , value]) => {
      const from = place(below);
      below += value(bin);
      return value(bin) ? bar(cls, LEFT + index * step, step - (step > 4 ? 1 : 0), from, place(below), told) : null;
    });
  });
  const marks = [0, 0.5, 1].map((share) => {
    const index = Math.min(plot.bins.length - 1, Math.floor(share * plot.bins.length));
    return svg("text", { class: "tick", x: LEFT + share * (WIDTH - LEFT), y: HEIGHT - 6, "text-anchor": ["start", "middle", "end"][share * 2] },
      clock(plot.start + (index + (share === 1 ? 1 : 0)) * plot.step_s, plot.step_s));
  });
  const legend = series.length > 1 ? el("p", { class: "legend" }, series.map(([cls, name]) => el("span", { class: `key ${cls}` }, name))) : null;
  const figure = frame(title, `${count(plot.bins.reduce((sum, bin) => sum + total(bin), 0))} in all, in bins of ${span(plot.step_s * 1000)}.`, lines, bars, marks);
  figure.append(...[legend, el("p", { class: "note" }, `bins of ${span(plot.step_s * 1000)}, UTC${plot.untimed ? `; ${count(plot.untimed)} without a time left out` : ""}`)].filter(Boolean));
  return figure;
}

/** A histogram of milliseconds on a logarithmic scale, with its median and 90th and 99th percentile. */
export function spread(title, { figures, plot }) {
  if (!plot.counts.length) return empty(title, "No call says how long it took.");
  const low = Math.log10(plot.edges[0]);
  const high = Math.log10(plot.edges.at(-1));
  const across = (value) => LEFT + ((Math.log10(Math.max(value, plot.edges[0])) - low) / (high - low)) * (WIDTH - LEFT);
  const { place, lines } = heights(Math.max(...plot.counts));
  const bars = plot.counts.map((number, index) => number ? bar("calls", across(plot.edges[index]), across(plot.edges[index + 1]) - across(plot.edges[index]) - 1,
    place(0), place(number), `${span(plot.edges[index])} to ${span(plot.edges[index + 1])}: ${count(number)}`) : null);
  const ticks = plot.ticks.map((tick) => svg("text", { class: "tick", x: Math.min(Math.max(across(tick), LEFT + 12), WIDTH - 16), y: HEIGHT - 6, "text-anchor": "middle" }, span(tick)));
  const quantiles = new Map(figures.quantiles);
  const marks = [0.5, 0.9, 0.99].map((share) => svg("line", { class: "quantile", x1: across(quantiles.get(share)), x2: across(quantiles.get(share)), y1: TOP, y2: HEIGHT - BOTTOM },
    svg("title", {}, `${share * 100} % within ${span(quantiles.get(share))}`)));
  const told = [0.5, 0.9, 0.99, 1].map((share) => `${share === 1 ? "longest" : share === 0.5 ? "median" : `${share * 100} %`} ${span(quantiles.get(share))}`).join(" · ");
  const figure = frame(title, told, lines, bars, ticks, marks);
  figure.append(el("p", { class: "note" }, `${count(figures.count)} calls · ${told}`));
  return figure;
}

/** Counts by name as bars. `link`: of a name, where it leads. */
export function byName(title, counts, cls, none, { name = (text) => text, link = null } = {}) {
  const entries = Object.entries(counts).filter(([, number]) => number > 0);
  if (!entries.length) return empty(title, none);
  const most = Math.max(...entries.map(([, number]) => number));
  return el("figure", { class: "plot" }, el("figcaption", {}, title),
    el("table", { class: "bars" }, el("tbody", {}, entries.map(([key, number]) => el("tr", {},
      el("th", { scope: "row" }, link ? el("a", { href: link(key), "data-key": `${title}/${key}` }, name(key)) : name(key)),
      el("td", { class: "number" }, count(number)),
      el("td", { class: "track", "aria-hidden": "true" }, svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none" },
        svg("rect", { class: cls, x: 0, y: 1, width: Math.max(1, (100 * number) / most), height: 8 }))))))));
}

function empty(title, told) {
  return el("figure", { class: "plot" }, el("figcaption", {}, title), el("p", { class: "none" }, told));
}
