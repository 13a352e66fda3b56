// Asking the server: once, or again and again, with the version that is here already.

const INTERVAL_MS = 1000;
const READING_MS = 30;
const MOST_MS = 15000;

export class Trouble extends Error {
  constructor(status, type, message) {
    super(message);
    this.status = status;
    this.type = type;
  }
}

async function ask(path, tag, signal) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", signal, headers: tag ? { "If-None-Match": tag } : {} });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble(0, "Unreachable", "The viewer does not answer any more; was it stopped? What is shown is the last that it said.");
  }
  if (response.status === 304) return { same: true };
  let data = null;
  try {
    data = await response.json();
  } catch {
    // told below
  }
  if (!response.ok || data === null) {
    const error = data?.error ?? { type: "Unexpected", message: `The viewer answered ${response.status}.` };
    throw new Trouble(response.status, error.type, error.message);
  }
  return { data, tag: response.headers.get("etag") };
}

/** The answer to one request. */
export async function once(path, signal) {
  return (await ask(path, null, signal)).data;
}

/**
 * Ask now and then until the returned function is called.
 * `onData` gets each answer that differs, `onTrouble` a Trouble, or null when it is over. While the server is still
 * reading (`reading`), it is asked again at once; an answer that takes long is asked for less often.
 */
export function watch(path, onData, onTrouble) {
  const control = new AbortController();
  let tag = null;
  let timer = null;
  let troubled = false;
  let asking = false;

  async function step() {
    if (asking) return;
    asking = true;
    const began = performance.now();
    let next = INTERVAL_MS;
    try {
      const answer = await ask(path, tag, control.signal);
      if (troubled) onTrouble(null);
      troubled = false;
      if (!answer.same) {
        tag = answer.tag;
        const reading = answer.data.reading;
        onData(answer.data);
        if (reading && reading.read < reading.known) next = READING_MS;
      }
      if (next === INTERVAL_MS) next = Math.min(MOST_MS, Math.max(next, 5 * (performance.now() - began)));
    } catch (error) {
      if (control.signal.aborted) return;
      if (!(error instanceof Trouble)) throw error;
      troubled = true;
      tag = null;
      onTrouble(error);
    }
    asking = false;
    if (!control.signal.aborted && !document.hidden) timer = setTimeout(step, next);
  }

  function seen() {
    // A page that nobody looks at asks for nothing; it catches up when it is looked at again.
    clearTimeout(timer);
    if (!document.hidden) step();
  }

  document.addEventListener("visibilitychange", seen);
  step();
  return () => {
    control.abort();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}
