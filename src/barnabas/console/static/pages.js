// Every page: { path, title, nav?, View }. `nav` is { label, group }; those without one are reached from others.
import { page as overview } from "./pages/overview.js";
import { page as topics } from "./pages/topics.js";
import { page as topic } from "./pages/topic.js";
import { page as groups } from "./pages/groups.js";
import { page as group } from "./pages/group.js";
import { INSIDE_PAGES } from "./pages_inside.js";

export const PAGES = [overview, topics, topic, groups, group, ...INSIDE_PAGES];
