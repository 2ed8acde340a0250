"""The console: a Kafka cluster in a browser. Installed with `barnabas[console]`; a client of the cluster like any other.

The modules:

* `app.create_app(settings)` builds the Starlette application from lists of `web.Endpoint`s, one list per module.
* `web`: `Endpoint` (method, path, handler, OpenAPI description), `Call` (a handler's argument), JSON in and out.
* `errors`: the only format of errors: `{"error": {"code": "TOPIC_ALREADY_EXISTS", "message": "…"}}`.
* `gate`: the outermost layer; refuses requests of other sites, and sets the page's Content-Security-Policy.
* `guard`: identifies the user (`identify`) and permits changes (`changing`). Read-only unless `--read-write`. `sign_in`,
  `sessions`, `throttle`: credentials of the cluster, cookies, and delays for repeated failures to sign in.
* `cluster.ConsoleCluster`: one user's view of the cluster, through `barnabas.client`. `kept` caches answers for a moment, so
  that many viewers cost as much as one; `forget` clears the cache after a change.
* `collector.Collector`: repeats live GETs while a browser watches them, and sends each answer to all watchers (`/api/events`).
* `overview`, `topics`, `messages`, `groups`, …: endpoints by subject. `inside*`: views that only barnabas brokers offer.
* `server`: a socket, uvicorn, signals. `static/`: the page, Preact and htm without a build step.

To add a page: write endpoints in a module with a list `ENDPOINTS`, and name it in `app.MODULES`. An endpoint with `live_s` can
be watched: `useLive(path)` of `static/lib/api.js`. Then write `static/pages/NAME.js`, which exports `page`, and name it in
`static/pages.js`. The guard checks all methods except GET automatically.
"""
