// Single keys, while nobody types and no dialog is open. They can be switched off, for people who speak to a computer.

import { remembered } from "./storage.js";

const stored = remembered(() => localStorage, "clawrl-console-keys");
const bound = new Map();

export const shortcuts = {
  get on() {
    return stored.get() !== "off";
  },
  set on(value) {
    stored.set(value ? "on" : "off");
  },
};

export function bind(keys, act) {
  for (const key of [keys].flat()) bound.set(key, act);
  return () => [keys].flat().forEach((key) => bound.get(key) === act && bound.delete(key));
}

// Behind the gate nothing is left to act on.
export const unbindAll = () => bound.clear();

const typing = (target) => target.closest?.("input, textarea, select, [contenteditable], [role=listbox], [role=img]");

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]") || typing(event.target)) return;
    // Help can always be asked for, or nobody would find the switch again.
    if (!shortcuts.on && event.key !== "?") return;
    const act = bound.get(event.key);
    if (!act) return;
    event.preventDefault();
    act(event);
  });
}
