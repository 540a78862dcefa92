// Sign-in with a bearer token, the same as for the API.
import { signIn } from "../lib/api.js";
import { html, useState } from "../lib/dom.js";
import { Problem } from "../lib/parts.js";

export default function SignIn({ note, onSignedIn }) {
  const [error, setError] = useState(note);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    const token = new FormData(event.currentTarget).get("token").trim();
    try {
      await signIn({ token });
      await onSignedIn();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`<main class="signin">
    <h1><img src="icon.svg" alt="" width="34" height="34" /> Lattice</h1>
    <form onSubmit=${submit}>
      <label for="token">Bearer token</label>
      <input id="token" name="token" type="password" autocomplete="current-password" required autofocus placeholder="lat-…" />
      <button type="submit" class="main" disabled=${busy}>Sign in</button>
    </form>
    <${Problem} error=${error} />
    <p class="quiet">A token is in the kubeconfig that <code>lattice kubeconfig --user NAME --group lattice:viewers --token</code> prints.
      On your own machine, <code>lattice up</code> prints a link that signs you in.</p>
  </main>`;
}
