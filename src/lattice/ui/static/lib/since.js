// Whether an answer is outdated: the fleet may have changed after the answer was computed.
import { html, useState } from "./dom.js";
import { useLive } from "./live.js";

const DECLARED = [
  "latticepools", "latticenodeclasses", "cloudinfrastructures", "staticinfrastructures", "latticeplacementpolicies", "latticeclusters",
];

// answer: null before the first answer.
export function useChangedSince(answer) {
  const [changed, setChanged] = useState(null);
  useLive(DECLARED, () => setChanged(answer));
  return Boolean(answer) && changed === answer;
}

export const ChangedSince = ({ again, onAgain }) => html`<span class="quiet" role="note">The fleet has changed since this result.${" "}
  <button type="button" class="plain" onClick=${onAgain}>${again}</button></span>`;
