// Elements made of data. Data becomes text nodes and attributes here, and never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `attributes`: `on…` are listeners, true and false set and leave out, all else is text. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An SVG element, likewise. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Put new content into an element. What had the focus keeps it, if its `data-key` is there again. */
export function fill(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  if (key !== undefined) {
    for (const each of element.querySelectorAll("[data-key]")) {
      if (each.dataset.key === key) each.focus({ preventScroll: true });
    }
  }
}
