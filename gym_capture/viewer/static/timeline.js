// A rollout's calls as bars on a line of time, those side by side in lanes.

import { el, svg } from "./dom.js";
import { count, moment, plural, span } from "./format.js";

const WIDTH = 1000;
const LANE = 20;
const TOP = 22;
const MOST_BARS = 5000;

/** `onOpen` gets the index of the call whose bar was chosen. */
export function timeline(data, onOpen) {
  const title = el("h3", {}, "Timeline");
  if (data.origin === null) return el("section", { id: "timeline" }, title, el("p", { class: "none" }, "No call says when it began."));
  const starts = data.bars.map((bar) => bar.start_s);
  const length = Math.max(data.length_s, ...starts.slice(-1), 0.001) * 1.02;
  const across = (seconds) => (seconds / length) * WIDTH;
  const lanes = Math.min(data.lanes, 40);
  const height = TOP + lanes * LANE + 4;
  const step = tickStep(length);
  const ticks = [];
  for (let at = 0; at <= length; at += step) {
    ticks.push(svg("line", { class: "grid", x1: across(at), x2: across(at), y1: TOP - 4, y2: height }),
      svg("text", { class: "tick", x: across(at) + 3, y: 13 }, span(at * 1000)));
  }
  const shown = data.bars.slice(0, MOST_BARS).filter((bar) => bar.lane < lanes);
  // One stop for Tab, however many bars there are; arrows go from one to the next.
  const stop = shown.find((bar) => bar.call_index !== null);
  const bars = shown.map((bar) => {
    const x = across(bar.start_s);
    const y = TOP + bar.lane * LANE;
    const width = bar.duration_ms === null ? (bar.call_index === null ? WIDTH - x : 2) : Math.max(2, across(bar.duration_ms / 1000));
    const first = bar.ttft_ms === null ? 0 : Math.min(width, across(bar.ttft_ms / 1000));
    const name = bar.call_index === null ? "open claim" : `call ${bar.call_index}`;
    const told = [name, bar.model, bar.error ? `failed: ${bar.error}` : null, `after ${span(bar.start_s * 1000)}`, bar.duration_ms === null ? "not ended" : `took ${span(bar.duration_ms)}`,
      bar.ttft_ms === null ? null : `first token after ${span(bar.ttft_ms)}`, bar.tokens_out === null ? null : `${count(bar.tokens_out)} tokens out`].filter(Boolean).join(", ");
    const open = () => { if (bar.call_index !== null) onOpen(bar.call_index); };
    const cls = bar.call_index === null ? "waiting" : bar.error ? "failed" : bar.verifier_invocation_id ? "verifier" : "call";
    return svg("g", { class: `bar ${cls}`, tabindex: bar.call_index === null ? null : bar === stop ? 0 : -1, "data-key": `bar/${bar.call_index}`, role: bar.call_index === null ? "img" : "button", "aria-label": told,
      "data-call": bar.call_index, onclick: open, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } } },
    svg("title", {}, told),
    svg("rect", { x, y, width, height: LANE - 4, rx: 2 }),
    first > 0 ? svg("rect", { class: "first", x, y, width: first, height: LANE - 4, rx: 2 }) : null,
    width > 24 && bar.call_index !== null ? svg("text", { class: "label", x: x + width / 2, y: y + 12, "text-anchor": "middle" }, String(bar.call_index)) : null);
  });
  const left = [
    shown.length < data.bars.length ? `${plural(data.bars.length - shown.length, "bar")} left out` : null,
    data.unplaced.length ? `${plural(data.unplaced.length, "call")} without a time: ${data.unplaced.slice(0, 20).join(", ")}` : null,
  ].filter(Boolean);
  return el("section", { id: "timeline" }, title,
    svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "timeline", role: "group", onkeydown: along, "aria-label": `Timeline of ${plural(data.bars.length, "call")} in ${plural(data.lanes, "lane")}` }, ticks, bars),
    el("p", { class: "note" }, `from ${moment(data.origin)} UTC, ${span(data.length_s * 1000)}, ${plural(data.lanes, "lane")}; the fainter part of a bar is the time to the first token${left.length ? `. ${left.join("; ")}` : ""}`));
}

function along(event) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  const bars = [...event.currentTarget.querySelectorAll(".bar[tabindex]")];
  bars[bars.indexOf(document.activeElement) + by]?.focus();
  event.preventDefault();
}

function tickStep(length) {
  const rough = length / 8;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
}
