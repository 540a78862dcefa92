// Is an answer still about the fleet as it is? What it was reckoned from may have changed since.
import { html, useState } from "./dom.js";
import { useLive } from "./live.js";

const DECLARED = [
  "latticepools", "latticenodeclasses", "cloudinfrastructures", "staticinfrastructures", "latticeplacementpolicies", "latticeclusters",
];

// answer: null while there is none.
export function useChangedSince(answer) {
  const [changed, setChanged] = useState(null);
  useLive(DECLARED, () => setChanged(answer));
  return Boolean(answer) && changed === answer;
}

export const ChangedSince = ({ again, onAgain }) => html`<span class="quiet" role="note">The fleet has changed since.${" "}
  <button type="button" class="plain" onClick=${onAgain}>${again}</button></span>`;
