// How elements are written: htm templates on Preact, and its hooks, from one place.
import { Component, createElement, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render };
export { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export const html = htm.bind(createElement);

// What breaks inside is told by `otherwise(error)`, and breaks nothing around it. Elsewhere (`at`) it is tried again.
export class Guarded extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  componentWillReceiveProps({ at }) {
    if (at !== this.props.at) this.setState({ error: null });
  }

  render({ children, otherwise }, { error }) {
    return error ? otherwise(error) : children;
  }
}

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
