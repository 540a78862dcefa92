// Other tabs of this browser: they have the same cookie, and whoever signs out in one is out in all.
import { useEffect, useRef } from "./dom.js";

// Calls back when another tab signs out; what it gives is called after signing out in this one.
export function usePeers(onOut) {
  const latest = useRef(onOut);
  latest.current = onOut;
  const channel = useRef(null);
  useEffect(() => {
    channel.current = new BroadcastChannel("lattice-signed-out");
    channel.current.onmessage = () => latest.current();
    return () => channel.current.close();
  }, []);
  return () => channel.current?.postMessage("");
}
