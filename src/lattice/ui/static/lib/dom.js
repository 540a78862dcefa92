// Page elements: htm templates on Preact, and its hooks, imported from here only.
import { Component, createElement, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { render };
export { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export const html = htm.bind(createElement);

// Shows `otherwise(error)` if a child fails, without affecting the rest of the page. A new address (`at`) clears the error.
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

// Draws `View` again only when `same(before, now)` is false; for elements of which a page has thousands.
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
