// Other tabs of this browser share the cookie: signing out in one tab signs out in all tabs.
import { useEffect, useRef } from "./dom.js";

// Calls back when another tab signs out. Returns a function to call after signing out in this tab.
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
