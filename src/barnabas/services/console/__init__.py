"""The console: a Kafka cluster in a browser. Installed with `barnabas[console]`; a client of the cluster like any other.

Who owns what:

* `app.create_app(settings)` composes the Starlette application from lists of `web.Endpoint`s, one list a module.
* `web`: `Endpoint` (method, path, handler, what OpenAPI says of it), `Call` (what a handler gets), JSON in and out.
* `errors`: the one shape of a failure: `{"error": {"code": "TOPIC_ALREADY_EXISTS", "message": "…"}}`.
* `gate`: refuses what other sites send, and binds the page (CSP). Outside of everything.
* `guard`: who asks (`identify`) and whether a change may go ahead (`changing`). Read-only unless `--read-write`. `sign_in`,
  `sessions`, `throttle`: credentials of the cluster, cookies, and slower answers to those who guess.
* `cluster.ConsoleCluster`: what one user sees of the cluster, through `barnabas.client`. `kept` keeps answers for a moment, so
  that many viewers cost what one costs; `forget` after a change.
* `collector.Collector`: repeats live GETs while somebody looks, and hands each answer to all who look (`/api/events`).
* `overview`, `topics`, `messages`, `groups`, …: endpoints by what they are about. `inside*`: what only our brokers tell.
* `server`: a socket, uvicorn, signals. `static/`: the page, Preact and htm without a build step.

To add a page: write endpoints in a module with a list `ENDPOINTS`, and name it in `app.MODULES`. One with `live_s` can be
watched: `useLive(path)` of `static/lib/api.js`. Then write `static/pages/NAME.js`, which exports `page`, and name it in
`static/pages.js`. Everything that is not a GET goes through the guard by itself.
"""
