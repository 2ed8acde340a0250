// The current user, and the token that changes need. Requested once, and again after signing in or out.
import { useEffect, useState } from "./dom.js";
import { changeHeaders, change, get } from "./api.js";

let known = null;

function take(session) {
  known = session;
  if (session?.csrfToken) changeHeaders["x-csrf-token"] = session.csrfToken;
  else delete changeHeaders["x-csrf-token"];
  dispatchEvent(new Event("console-session"));
}

/** { session, error }; `session` is null until it is known. */
export function useSession() {
  const [state, setState] = useState({ session: known, error: null });
  useEffect(() => {
    const told = () => setState({ session: known, error: null });
    const ask = () => get("/api/session").then(take, (error) => setState({ session: null, error }));
    addEventListener("console-session", told);
    addEventListener("console-signed-out", ask);
    if (!known) ask();
    return () => {
      removeEventListener("console-session", told);
      removeEventListener("console-signed-out", ask);
    };
  }, []);
  return state;
}

export const signIn = async (credentials) => take(await change("POST", "/api/session", credentials));
export const signOut = async () => take(await change("DELETE", "/api/session"));
