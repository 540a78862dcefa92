// How elements are written: htm templates on Preact, and its hooks, from one place.
import { Component, createElement, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render };
export { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export const html = htm.bind(createElement);

// Draws `View` anew only when `same(before, now)` says no: for parts of which there are a thousand.
export function memo(View, same) {
  return class extends Component {
    shouldComponentUpdate(next) {
      return !same(this.props, next);
    }

    render(props) {
      return View(props);
    }
  };
}
