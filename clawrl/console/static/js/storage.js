// What a browser remembers for the page. One that keeps nothing (blocked storage throws at the first touch) gets a page that
// works all the same and forgets with the next load.

// `area` gives the storage, so that touching it can fail here.
export function remembered(area, name) {
  let held = null;
  return {
    get() {
      try {
        return area().getItem(name) ?? held;
      } catch {
        return held;
      }
    },
    set(value) {
      held = value;
      try {
        area().setItem(name, value);
      } catch {
        // It stays in memory.
      }
    },
    clear() {
      held = null;
      try {
        area().removeItem(name);
      } catch {
        // There was nothing to remove.
      }
    },
  };
}
