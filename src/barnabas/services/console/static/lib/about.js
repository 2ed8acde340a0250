// Facts about the console, requested once: whether changes are allowed, and the current user.
import { useEffect, useState } from "./dom.js";
import { get } from "./api.js";

let asked = null;

// Another user may have other rights.
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
