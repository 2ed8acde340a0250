// Every page: { path, title, nav?, View }. `nav` is { label, group }; pages without it are linked from other pages.
import { page as overview } from "./pages/overview.js";
import { page as topics } from "./pages/topics.js";
import { page as topic } from "./pages/topic.js";
import { page as groups } from "./pages/groups.js";
import { page as group } from "./pages/group.js";
import { page as clients, clientPage } from "./pages/clients.js";
import { page as schemas, subjectPage } from "./pages/schemas.js";
import { page as acls } from "./pages/acls.js";
import { page as quotas } from "./pages/quotas.js";
import { page as users } from "./pages/users.js";
import { INSIDE_PAGES } from "./pages_inside.js";

export const PAGES = [overview, topics, topic, groups, group, clients, clientPage, schemas, subjectPage, acls, quotas, users, ...INSIDE_PAGES];
