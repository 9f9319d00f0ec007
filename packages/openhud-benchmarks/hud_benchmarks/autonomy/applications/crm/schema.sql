CREATE TABLE users (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    login TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    password TEXT NOT NULL
);
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    industry TEXT NOT NULL,
    city TEXT NOT NULL,
    owner_id INTEGER NOT NULL REFERENCES users
);
CREATE TABLE contacts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    account_id INTEGER NOT NULL REFERENCES accounts,
    name TEXT NOT NULL,
    email TEXT NOT NULL,
    phone TEXT NOT NULL,
    role TEXT NOT NULL,
    added TEXT NOT NULL
);
-- Amounts are in EUR.
CREATE TABLE deals (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    account_id INTEGER NOT NULL REFERENCES accounts,
    contact_id INTEGER REFERENCES contacts,
    name TEXT NOT NULL UNIQUE,
    stage TEXT NOT NULL CHECK (stage IN ('qualified', 'proposal', 'negotiation', 'won', 'lost')),
    lost_reason TEXT NOT NULL DEFAULT '',
    amount INTEGER NOT NULL,
    closes TEXT NOT NULL,
    owner_id INTEGER NOT NULL REFERENCES users
);
CREATE TABLE activities (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    account_id INTEGER NOT NULL REFERENCES accounts,
    contact_id INTEGER REFERENCES contacts,
    deal_id INTEGER REFERENCES deals,
    kind TEXT NOT NULL CHECK (kind IN ('call', 'meeting', 'mail', 'note')),
    summary TEXT NOT NULL,
    day TEXT NOT NULL,
    author_id INTEGER NOT NULL REFERENCES users
);
CREATE TABLE tasks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    account_id INTEGER NOT NULL REFERENCES accounts,
    title TEXT NOT NULL,
    due TEXT NOT NULL,
    assignee_id INTEGER NOT NULL REFERENCES users,
    done INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE leads (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    company TEXT NOT NULL,
    email TEXT NOT NULL,
    phone TEXT NOT NULL,
    source TEXT NOT NULL,
    seats INTEGER NOT NULL,
    remark TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('new', 'converted', 'disqualified')),
    reason TEXT NOT NULL DEFAULT '',
    contact_id INTEGER REFERENCES contacts,
    deal_id INTEGER REFERENCES deals
);
CREATE TABLE products (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    price INTEGER NOT NULL
);
CREATE TABLE quotes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    deal_id INTEGER NOT NULL REFERENCES deals,
    discount INTEGER NOT NULL DEFAULT 0,
    valid_until TEXT NOT NULL DEFAULT '',
    status TEXT NOT NULL CHECK (status IN ('draft', 'sent'))
);
CREATE TABLE quote_lines (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    quote_id INTEGER NOT NULL REFERENCES quotes,
    product_id INTEGER NOT NULL REFERENCES products,
    quantity INTEGER NOT NULL CHECK (quantity > 0),
    price INTEGER NOT NULL
);
