// Light, dark or what the system says; remembered in this browser. Tells listeners, since a canvas knows no style sheet.

import { h, icon, replace } from "./dom.js";
import { remembered } from "./storage.js";

const stored = remembered(() => localStorage, "clawrl-console-theme");
const NAMES = { auto: "as the system", light: "light", dark: "dark" };
const ICONS = { auto: "auto", light: "sun", dark: "moon" };
const ORDER = ["auto", "light", "dark"];

let current = ORDER.includes(stored.get()) ? stored.get() : "auto";

function apply() {
  document.documentElement.dataset.theme = current;
  document.dispatchEvent(new CustomEvent("console:theme"));
}

export function startTheme() {
  apply();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
}

export function nextTheme() {
  current = ORDER[(ORDER.indexOf(current) + 1) % ORDER.length];
  stored.set(current);
  apply();
  return NAMES[current];
}

export function themeButton() {
  const button = h("button", { class: "quiet", type: "button", onclick: nextTheme, "data-testid": "theme" });
  const show = () => {
    replace(button, icon(ICONS[current]), h("span", { class: "label" }, "Theme"));
    button.setAttribute("aria-label", `Theme: ${NAMES[current]}`);
    button.title = `Theme: ${NAMES[current]} (t)`;
  };
  document.addEventListener("console:theme", show);
  show();
  return button;
}

// The colour that a custom property has now, as a canvas takes it.
export function colour(name) {
  const probe = h("span", { class: "probe" });
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
