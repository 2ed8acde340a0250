// What the console says of itself, asked once: whether changes are allowed, who is signed in.
import { useEffect, useState } from "./dom.js";
import { get } from "./api.js";

let asked = null;

// Another user may be allowed other things.
addEventListener("console-session", () => {
  asked = null;
});

export function about() {
  asked ??= get("/api/about");
  return asked;
}

export function useAbout() {
  const [found, setFound] = useState({});
  useEffect(() => {
    about().then(setFound, () => {
      asked = null;
    });
  }, []);
  return found;
}
