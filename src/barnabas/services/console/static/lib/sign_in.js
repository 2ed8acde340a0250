// The sign-in form.
import { html, useEffect, useState } from "./dom.js";
import { Field, Problem, Tabs } from "./parts.js";
import { signIn } from "./session.js";

export function SignIn() {
  const [kind, setKind] = useState("password");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    document.title = "Sign in · barnabas console";
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    setBusy(true);
    setError(null);
    try {
      await signIn(kind === "password" ? { user: form.get("user"), password: form.get("password") } : { token: form.get("token").trim() });
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<form class="sign-in panel" onSubmit=${submit}>
    <h1>Sign in</h1>
    <p class="quiet">With a user of the cluster. You see and change what its ACLs allow.</p>
    <${Tabs} label="How" current=${kind} onChange=${setKind} tabs=${[["password", "Password"], ["token", "Token"]]} />
    ${kind === "password"
      ? html`<${Field} key="user" label="User" name="user" autocomplete="username" autocapitalize="off" spellcheck="false" required maxlength="256" />
          <${Field} key="password" label="Password" name="password" type="password" autocomplete="current-password" required />`
      : html`<${Field} key="token" label="Token (OAUTHBEARER)" name="token" type="password" autocomplete="off" required />`}
    <${Problem} error=${error} />
    <button type="submit" class="primary" disabled=${busy}>${busy ? "Signing in…" : "Sign in"}</button>
  </form>`;
}
