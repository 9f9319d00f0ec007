CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    login TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    password TEXT NOT NULL
);
CREATE TABLE projects (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    summary TEXT NOT NULL
);
CREATE TABLE components (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id INTEGER NOT NULL REFERENCES projects,
    name TEXT NOT NULL,
    owner_id INTEGER NOT NULL REFERENCES users
);
CREATE TABLE tickets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    component_id INTEGER NOT NULL REFERENCES components,
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'in progress', 'closed')),
    resolution TEXT NOT NULL DEFAULT '',
    priority TEXT NOT NULL CHECK (priority IN ('low', 'normal', 'high', 'urgent')),
    milestone TEXT NOT NULL DEFAULT '',
    assignee_id INTEGER REFERENCES users,
    reporter_id INTEGER NOT NULL REFERENCES users,
    duplicate_of INTEGER REFERENCES tickets,
    parent_id INTEGER REFERENCES tickets,
    opened TEXT NOT NULL
);
CREATE TABLE labels (
    ticket_id INTEGER NOT NULL REFERENCES tickets,
    name TEXT NOT NULL,
    UNIQUE (ticket_id, name)
);
CREATE TABLE comments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ticket_id INTEGER NOT NULL REFERENCES tickets,
    author_id INTEGER NOT NULL REFERENCES users,
    body TEXT NOT NULL
);
