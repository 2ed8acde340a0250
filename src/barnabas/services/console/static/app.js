// The frame of all pages: navigation, theme, and the page at the current address.
import { html, render, useEffect, useState } from "./lib/dom.js";
import { useLocation, match, go } from "./lib/router.js";
import { useAbout } from "./lib/about.js";
import { signOut, useSession } from "./lib/session.js";
import { SignIn } from "./lib/sign_in.js";
import { Badge, Loading, Problem } from "./lib/parts.js";
import { PAGES } from "./pages.js";

const THEMES = ["auto", "light", "dark"];

function useTheme() {
  const [theme, setTheme] = useState(() => localStorage.getItem("theme") ?? "auto");
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
    dispatchEvent(new Event("console-theme"));
  }, [theme]);
  return [theme, setTheme];
}

function Navigation({ path, isOpen, close }) {
  const groups = new Map();
  for (const page of PAGES) {
    if (page.nav) groups.set(page.nav.group ?? "", [...(groups.get(page.nav.group ?? "") ?? []), page]);
  }
  return html`<nav id="navigation" class=${`navigation ${isOpen ? "open" : ""}`} aria-label="Pages">
    ${[...groups].map(
      ([group, pages]) => html`<div key=${group}>
        ${group && html`<h2>${group}</h2>`}
        <ul>
          ${pages.map(
            (page) =>
              html`<li key=${page.path}><a href=${page.path} aria-current=${path === page.path || path.startsWith(`${page.path}/`) ? "page" : undefined} onClick=${close}>${page.nav.label}</a></li>`,
          )}
        </ul>
      </div>`,
    )}
  </nav>`;
}

function App({ session, theme, setTheme }) {
  const { path } = useLocation();
  const about = useAbout();
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    if (path === "/") go(PAGES[0].path, { replace: true });
  }, [path]);
  let view = path === "/" ? null : html`<h1>Page not found</h1><p><a href="/">Go to the overview</a></p>`;
  for (const page of PAGES) {
    const found = match(page.path, path);
    if (found) {
      view = html`<${page.View} key=${page.path + JSON.stringify(found)} ...${found} />`;
      break;
    }
  }
  return html`<a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      document.getElementById("main").focus();
    }}>Skip to content</a>
    <header class="top">
      <button type="button" class="menu" aria-expanded=${isOpen ? "true" : "false"} aria-controls="navigation" onClick=${() => setOpen(!isOpen)}>Menu</button>
      <a class="brand" href="/"><img src="/static/icon.svg" alt="" width="24" height="24" />barnabas</a>
      <span class="where" title="The cluster">${about.bootstrap ?? ""}</span>
      ${about.version && html`<${Badge} kind=${about.readWrite ? "warn" : "plain"} title=${about.readWrite ? "Changes are allowed" : "Changes are refused; start with --read-write"}>${about.readWrite ? "read-write" : "read-only"}<//>`}
      ${session.signIn && html`<span class="user" title="Signed in as">${session.user}</span><button type="button" onClick=${signOut}>Sign out</button>`}
      <label class="theme"><span>Colours </span>
        <select value=${theme} onChange=${(event) => setTheme(event.currentTarget.value)}>
          ${THEMES.map((each) => html`<option key=${each} value=${each} selected=${each === theme}>${each}</option>`)}
        </select></label>
    </header>
    <div class="body">
      <${Navigation} path=${path} isOpen=${isOpen} close=${() => setOpen(false)} />
      <main id="main" tabindex="-1">${view}</main>
    </div>`;
}

/** Show only the sign-in form until the user has signed in. Another user gets a fresh page. */
function Entry() {
  const [theme, setTheme] = useTheme();
  const { session, error } = useSession();
  if (!session) return html`<main>${error ? html`<${Problem} error=${error} />` : html`<${Loading} />`}</main>`;
  if (session.signIn && !session.user) return html`<main class="alone"><${SignIn} /></main>`;
  return html`<${App} key=${session.user} session=${session} theme=${theme} setTheme=${setTheme} />`;
}

render(html`<${Entry} />`, document.getElementById("app"));
