// Turns of a rollout: what each call added to the history, what was answered, and its payloads on demand.

import { once } from "./api.js";
import { el, fill } from "./dom.js";
import { count, moment, plural, span } from "./format.js";

const LONG_CHARACTERS = 2400;
const LONG_LINES = 30;
const LABELS = { reasoning: "reasoning", tool_call: "calls tool", tool_result: "tool result", refusal: "refuses", media: "media", raw: "", error: "error" };

/** One call. `rollout` is the id that its raw payloads are asked for with. */
export function turnView(turn, rollout) {
  const raw = el("div", { class: "raw" });
  const button = el("button", { type: "button", "aria-expanded": "false", "data-key": `raw/${turn.call_index}`, onclick: () => toggle() }, "raw JSON");
  async function toggle() {
    if (raw.childNodes.length) {
      fill(raw);
      button.setAttribute("aria-expanded", "false");
      return;
    }
    button.setAttribute("aria-expanded", "true");
    fill(raw, el("p", { class: "note" }, "reading …"));
    try {
      const found = await once(`api/rollouts/${encodeURIComponent(rollout)}/calls/${turn.call_index}`);
      fill(raw, found.payloads === null ? el("p", { class: "bad" }, "The payloads cannot be read.")
        : Object.entries(found.payloads).map(([name, text]) => [el("h5", {}, name.replace("_", " ")), el("pre", { tabindex: 0, "aria-label": name }, text)]));
    } catch (error) {
      fill(raw, el("p", { class: "bad" }, error.message));
    }
  }
  return el("article", { class: `turn ${turn.error || turn.damaged ? "bad-turn" : ""}`, id: `call-${turn.call_index}`, tabindex: -1, "aria-label": `Call ${turn.call_index}` },
    el("header", {}, el("h4", {}, el("a", { href: `#call-${turn.call_index}`, "data-item": true, "data-call": turn.call_index, "data-key": `call/${turn.call_index}` }, `call ${turn.call_index}`)),
      el("p", { class: "facts" }, facts(turn).map((each) => el("span", {}, each))), button),
    notes(turn).map((note) => el("p", { class: "warn" }, note)),
    side("added", turn.added, turn.added_left_out),
    side("answered", turn.answer, turn.answer_left_out),
    offered(turn), raw);
}

function facts(turn) {
  return [
    moment(turn.started_at),
    `took ${span(turn.latency_ms)}`,
    turn.ttft_ms === null ? null : `first token ${span(turn.ttft_ms)}`,
    `in ${count(turn.tokens_in)}${turn.cached_tokens === null ? "" : ` (${count(turn.cached_tokens)} cached)`}`,
    `out ${count(turn.tokens_out)}${turn.tokens_reasoning === null ? "" : ` (${count(turn.tokens_reasoning)} reasoning)`}`,
    turn.model,
    [turn.status_code, turn.finish_reason].filter((each) => each !== null).join(" "),
    turn.verifier_invocation_id === null ? null : `verifier ${turn.verifier_invocation_id}`,
  ].filter(Boolean);
}

function notes(turn) {
  const told = [];
  if (turn.damaged) told.push("Damaged: this call's payloads cannot be read.");
  if (turn.error) told.push(`Failed: ${turn.error}`);
  if (turn.beside.length) told.push(`Ran beside ${turn.beside.length === 1 ? "call" : "calls"} ${turn.beside.slice(0, 12).join(", ")}${turn.beside.length > 12 ? " …" : ""}`);
  if (turn.history === "extends" && turn.after !== turn.call_index - 1) told.push(`Goes on from call ${turn.after}`);
  if (turn.history === "repeats") told.push(`The same history as call ${turn.after}: ${plural(turn.shared, "message")}, nothing added`);
  if (turn.history === "refers") told.push(turn.after === null ? "Refers to a response that was not captured" : `Refers to the response of call ${turn.after}`);
  if (turn.history === "anew") told.push(`Goes on from no earlier call: ${plural(turn.shared, "message")} as in call ${turn.after}, then others. Shown whole:`);
  return told;
}

function side(name, messages, left) {
  if (!messages.length && !left) return null;
  return el("section", { class: name, "aria-label": name }, el("h5", {}, name), messages.map(messageView),
    left ? el("p", { class: "warn" }, `${plural(left, "message")} more; the raw JSON has them`) : null);
}

function messageView(message) {
  const pieces = message.pieces.length ? message.pieces : [{ kind: "text", text: "", name: null, call_id: null }];
  return el("div", { class: `message role-${["user", "assistant", "system", "tool", "developer"].includes(message.role) ? message.role : "other"}` },
    pieces.map((piece) => el("div", { class: `piece ${piece.kind}` },
      el("p", { class: "who" }, el("b", {}, message.role), ` ${LABELS[piece.kind] ?? ""} `, piece.name === null ? null : el("code", {}, piece.name)),
      textView(piece.text))));
}

function textView(text) {
  if (!text) return el("p", { class: "none" }, "(empty)");
  const lines = text.split("\n");
  if (text.length <= LONG_CHARACTERS && lines.length <= LONG_LINES) return el("pre", {}, text);
  const begin = lines.slice(0, 8).join("\n").slice(0, 700);
  return el("details", {}, el("summary", {}, el("span", { class: "begin" }, begin), el("span", { class: "note" }, ` … ${count(text.length)} characters`)), el("pre", {}, text));
}

function offered(turn) {
  const settings = Object.entries(turn.settings ?? {});
  if (!settings.length && !turn.tools?.length) return null;
  return el("details", { class: "settings" }, el("summary", {}, `settings${turn.tools?.length ? ` and ${plural(turn.tools.length, "tool")}` : ""}`),
    el("table", {}, el("tbody", {},
      turn.tools?.length ? el("tr", {}, el("th", { scope: "row" }, "tools"), el("td", {}, turn.tools.join(", "))) : null,
      settings.map(([key, value]) => el("tr", {}, el("th", { scope: "row" }, key), el("td", {}, value))))));
}
