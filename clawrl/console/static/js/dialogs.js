// Modal questions and passing notices. The browser's own <dialog> keeps the focus inside and gives it back.

import { add, h, icon, replace } from "./dom.js";

let notices;

export function noticeArea() {
  notices = h("div", { class: "notices", role: "status", "aria-live": "polite" });
  return notices;
}

export function notice(text, kind = "info") {
  const close = h("button", { class: "quiet small", type: "button", "aria-label": "Close this notice" }, icon("close"));
  const card = h("div", { class: `notice ${kind}` }, h("p", {}, text), close);
  close.addEventListener("click", () => card.remove());
  notices.append(card);
  // Errors stay until they are read.
  if (kind !== "error") setTimeout(() => card.remove(), 8000);
}

export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
}

function modal(title, content, wide = false) {
  const heading = h("h2", { id: "dialog-title" }, title);
  const dialog = h("dialog", { class: wide ? "wide" : "", "aria-labelledby": "dialog-title" }, heading, content);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// Resolves to the typed text ("" without a field) once `act(text)` went well, to null if it was called off.
export function ask({ title, text, field, action, danger = false, act }) {
  return new Promise((resolve) => {
    let outcome = null;
    const input = field && h("input", { type: "text", id: "dialog-field", maxlength: "500", autocomplete: "off" });
    const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    const go = h("button", { class: danger ? "danger" : "primary", type: "submit" }, action);
    const cancel = h("button", { type: "button" }, "Cancel");
    const form = h(
      "form",
      { method: "dialog" },
      [text].flat().map((paragraph) => h("p", {}, paragraph)),
      field && h("label", { for: "dialog-field" }, field),
      input,
      trouble,
      h("div", { class: "buttons end" }, cancel, go),
    );
    const dialog = modal(title, form);
    cancel.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => resolve(outcome));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      trouble.hidden = true;
      try {
        const said = input ? input.value.trim() : "";
        await act(said);
        outcome = said;
        dialog.close();
      } catch (error) {
        replace(trouble, error.message);
        trouble.hidden = false;
        go.disabled = false;
      }
    });
    (input ?? (danger ? cancel : go)).focus();
  });
}

export function help(rows, enabled, onEnabled) {
  const box = h("input", { type: "checkbox", id: "keys-on", checked: enabled });
  box.addEventListener("change", () => onEnabled(box.checked));
  const list = h("dl", { class: "keys" });
  for (const [keys, what] of rows) {
    add(list, [h("dt", {}, keys.map((one) => h("kbd", {}, one))), h("dd", {}, what)]);
  }
  const close = h("button", { class: "primary", type: "button" }, "Close");
  const body = h(
    "div",
    {},
    list,
    h("label", { class: "check" }, box, "Single keys act (switch off if they get in the way of speech input)"),
    h("div", { class: "buttons end" }, close),
  );
  const dialog = modal("Keyboard shortcuts", body, true);
  close.addEventListener("click", () => dialog.close());
  close.focus();
}
