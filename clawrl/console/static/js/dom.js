// Elements from plain values. Text only ever becomes text: what a model or a person wrote is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

// h("button", {class: "small", onclick: f, "aria-label": "…", disabled: true}, "text", child, [more])
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

// Writes only what changed, so that live values neither flicker nor lose a selection.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Builds the content of `element` anew only where what it shows has changed: what is opened, selected or has the focus in
// it stays.
export function stamped(element, value, build) {
  const stamp = JSON.stringify(value) ?? "";
  if (element.stamp === stamp) return;
  element.stamp = stamp;
  replace(element, build());
}

// Makes the children of `parent` those of `items`, by key. What did not change stays the same element: focus, selection
// and scrolling survive an update. A changed one that had the focus gets it back.
export function reconcile(parent, items, key, build) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    const stamp = JSON.stringify(item);
    let element = known.get(name);
    known.delete(name);
    if (!element || element.stamp !== stamp) {
      const fresh = build(item);
      fresh.dataset.key = name;
      fresh.stamp = stamp;
      if (element) {
        const focused = focusPath(element);
        if (at === element) at = element.nextElementSibling;
        element.remove();
        parent.insertBefore(fresh, at);
        focused?.(fresh);
      } else {
        parent.insertBefore(fresh, at);
      }
      continue;
    }
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  for (const element of known.values()) element.remove();
}

function focusPath(element) {
  const active = document.activeElement;
  if (!element.contains(active)) return null;
  const index = [element, ...element.querySelectorAll("a,button,input,select,[tabindex]")].indexOf(active);
  return (fresh) => [fresh, ...fresh.querySelectorAll("a,button,input,select,[tabindex]")][index]?.focus();
}

const PATHS = {
  overview: "M4 19V10M10 19V5M16 19v-7M20 19H3",
  chat: "M4 5h16v11H10l-4 4v-4H4z",
  turns: "M4 6h16M4 12h16M4 18h10",
  sessions: "M4 5h10v8H8l-4 3zM10 16h6l4 3V9h-3",
  versions: "M6 4v16M6 8h8a4 4 0 0 0 4-4M6 4h0M18 4h0M6 20h0",
  replicas: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5h0M8 16.5h0",
  up: "M7 11v9H4v-9zM7 11l4-7c2 0 2.6 1.4 2.2 3L12.5 10H18a2 2 0 0 1 2 2.4l-1.2 6A2 2 0 0 1 16.800 20H7",
  down: "M17 13V4h3v9zM17 13l-4 7c-2 0-2.600-1.400-2.200-3l.700-3H6a2 2 0 0 1-2-2.400l1.200-6A2 2 0 0 1 7.200 4H17",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.500 1.500M17.500 17.500L19 19M5 19l1.500-1.500M17.500 6.500L19 5",
  moon: "M20 14.500A8 8 0 1 1 9.500 4a6.500 6.500 0 0 0 10.500 10.500z",
  auto: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  keyboard: "M3 6h18v12H3zM7 10h0M11 10h0M15 10h0M8 14h8",
  lock: "M6 11h12v9H6zM8.500 11V8a3.500 3.500 0 0 1 7 0v3",
  pause: "M8 5v14M16 5v14",
  play: "M7 5l12 7-12 7z",
  publish: "M12 19V6M6 11l6-6 6 6M5 21h14",
  back: "M9 6l-6 6 6 6M3 12h18",
  send: "M4 12l16-8-5 16-4-6z",
  stop: "M6 6h12v12H6z",
  close: "M6 6l12 12M18 6L6 18",
  again: "M20 11a8 8 0 1 0-2.300 6.700M20 4v7h-7",
};

export function icon(name) {
  const path = svg("path", { d: PATHS[name], fill: "none", stroke: "currentColor", "stroke-width": "1.8" });
  path.setAttribute("stroke-linecap", "round");
  path.setAttribute("stroke-linejoin", "round");
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, path);
}
